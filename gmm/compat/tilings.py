"""Tilings as megablox and MaxText give them, as `ops.Tiles`.

Theirs are in the terms of each call: in dlhs, which contracts the weight's n,
tile_k is a tile of n and tile_n one of k. Ours are in the weight's terms.
"""

from __future__ import annotations

from typing import Any

from gmm import check_pieces
from gmm.config import Config, Tiles, Tiling

# What their signatures begin with. Nobody chose it, so ours are chosen.
DEFAULT = (128, 128, 128)
DEFAULT_9 = 3 * DEFAULT

_WANTED = (
  "3 of them (tile_m, tile_k, tile_n), 9 (three each for forward, dlhs, drhs), "
  "a function of (m, k, n) that returns 3, or None to have them chosen"
)


def config(backend: str, tiles: Tiles | None) -> Config:
  """With everything else chosen."""
  return Config(backend=backend, tiling=tiles)


def sizes_of(lhs: Any, rhs: Any, transpose_rhs: bool) -> tuple[int, int, int]:
  """(m, k, n) of a product; raises if an operand is no matrix or weight."""
  m, k = check_pieces.shape_of("lhs", lhs, "[m, k]")
  names = "[g, n, k]" if transpose_rhs else "[g, k, n]"
  _, *matrix = check_pieces.shape_of("rhs", rhs, names)
  return m, k, matrix[0 if transpose_rhs else 1]


def of_gmm(tiling: Any, sizes: tuple[int, int, int]) -> Tiles | None:
  """Tiles of a product and of its gradients.

  Args:
    tiling: 3 or 9 ints, a function of (m, k, n), or None.
    sizes: (m, k, n) of the product, for the function. It is asked for
      (m, n, k), too, for dlhs; None from it is then left to be chosen.

  Returns:
    The Tiles, or None where they are to be chosen.

  Raises:
    ValueError: another number of tiles, or no tiles from the function.
    TypeError: something else.
  """
  m, k, n = sizes
  if callable(tiling):
    fwd = _looked_up(tiling, sizes)
    dlhs = tiling(m, n, k)
    drhs = fwd
  else:
    tiles = _checked(tiling)
    if tiles is None:
      return None
    fwd, dlhs, drhs = tiles[:3], tiles[-6:-3] or tiles, tiles[-3:]
  if dlhs is not None:
    dlhs = (dlhs[0], dlhs[2], dlhs[1])
  return Tiles(fwd=fwd, dlhs=dlhs, drhs=drhs)


def of_tgmm(tiling: Any, sizes: tuple[int, int, int]) -> Tiles | None:
  """Tiles of a weight's product; of 9 the last three are meant.

  Args:
    tiling: as in `of_gmm`.
    sizes: (m, k, n) of the product.

  Returns:
    The Tiles, or None where they are to be chosen.

  Raises:
    ValueError: as in `of_gmm`.
    TypeError: as in `of_gmm`.
  """
  if callable(tiling):
    return Tiles(drhs=_looked_up(tiling, sizes))
  tiles = _checked(tiling)
  return None if tiles is None else Tiles(drhs=tiles[-3:])


def _checked(tiling: Any) -> tuple[Any, ...] | None:
  if tiling is None:
    return None
  if not isinstance(tiling, (tuple, list)):
    raise TypeError(f"`tiling` is {tiling!r}; want {_WANTED}")
  if len(tiling) not in (3, 9):
    raise ValueError(
      f"`tiling` = {tiling!r} has {len(tiling)} entries; want {_WANTED}"
    )
  tiling = tuple(tiling)
  return None if tiling in (DEFAULT, DEFAULT_9) else tiling


def _looked_up(tiling: Any, sizes: tuple[int, int, int]) -> Tiling:
  tiles = tiling(*sizes)
  if tiles is None:
    m, k, n = sizes
    raise ValueError(
      f"`tiling` returned None for (m, k, n) = ({m}, {k}, {n}); want "
      "(tile_m, tile_k, tile_n), or tiling=None to have them chosen"
    )
  return tiles
