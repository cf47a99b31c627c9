"""The matrix fails for every deliberate fault, and only for those."""

import pytest

from testing import mutations


def test_there_are_enough():
  names = [mutation.name for mutation in mutations.MUTATIONS]
  assert len(names) >= 12
  assert len(set(names)) == len(names)


def test_the_kernels_as_they_are_pass(tmp_path):
  mutations.copy_package(tmp_path)
  cases = {case: None for m in mutations.MUTATIONS for case in m.cases}
  caught, output = mutations.catches(tmp_path, tuple(cases), 600)
  assert not caught, output


@pytest.mark.parametrize(
  "mutation", mutations.MUTATIONS, ids=[m.name for m in mutations.MUTATIONS]
)
def test_is_caught(mutation, tmp_path):
  mutations.apply(mutation, mutations.copy_package(tmp_path))
  caught, output = mutations.catches(tmp_path, mutation.cases)
  print(output)
  assert caught, output


def test_stale_text_is_an_error(tmp_path):
  package = mutations.copy_package(tmp_path)
  mutation = mutations.MUTATIONS[0]
  mutations.apply(mutation, package)
  with pytest.raises(ValueError, match="stale"):
    mutations.apply(mutation, package)
