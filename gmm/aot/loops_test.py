"""How often the copies of a program run."""

import pytest

from gmm.aot import copies

W = "bf16[8,256,384]{2,1,0:T(8,128)(2,1)}"
W_T = "bf16[8,256,384]{1,2,0:T(8,128)(2,1)}"
CARRY = f"(s32[], {W}, s32[])"


def body(name, extra="", step="add(%old, %one)", end="%same"):
  """A body that counts in element 0, copies element 1, keeps element 2."""
  return f"""%{name} (t: s32[]) -> s32[] {{
  %t = {CARRY} parameter(0)
  %one = s32[] constant(1)
  %i = s32[] get-tuple-element(%t), index=0
  %old = s32[] copy(%i)
  %next = s32[] {step}
  %w = {W} get-tuple-element(%t), index=1
  %same = s32[] get-tuple-element(%t), index=2
  %copy.{name} = {W_T} copy(%w)
  %b.{name} = {W} bitcast(%copy.{name})
{extra}
  ROOT %r = {CARRY} tuple(%next, %b.{name}, {end})
}}
"""


def condition(name, limit="%limit", direction="LT", swap=False):
  sides = f"{limit}, %i" if swap else f"%i, {limit}"
  return f"""%{name} (t: s32[]) -> pred[] {{
  %t = {CARRY} parameter(0)
  %limit = s32[] constant(30)
  %i = s32[] get-tuple-element(%t), index=0
  %same = s32[] get-tuple-element(%t), index=2
  ROOT %c = pred[] compare(%i, %limit), direction={direction}
}}
""".replace("compare(%i, %limit)", f"compare({sides})")


def main(lines, *others):
  text = "\n".join(others)
  return f"""HloModule jit_f, is_scheduled=true

{text}
ENTRY %main (w.0: s32[]) -> s32[] {{
  %w.0 = {W} parameter(0)
  %n = s32[] parameter(1)
  %first = s32[] constant(0)
  %zero = s32[] copy(%first)
  %ten = s32[] constant(10)
  %init = {CARRY} tuple(%zero, %w.0, %ten)
{lines}
}}
"""


def while_(cond="cond", body="body", init="%init", note=""):
  return (
    f"  %loop.{body} = {CARRY} while({init}), condition=%{cond},"
    f" body=%{body}{note}"
  )


def times(text):
  return {c.name: c.times for c in copies.weight_copies(text, chip="v6e")}


@pytest.mark.parametrize(
  ("cond", "step", "count"),
  [
    ({}, "add(%old, %one)", 30),
    ({"swap": True, "direction": "GT"}, "add(%one, %old)", 30),
    ({"direction": "LE"}, "add(%old, %one)", 31),
    ({"direction": "NE"}, "add(%old, %one)", 30),
    ({"direction": "GT"}, "add(%old, %one)", None),
    ({"direction": "GT"}, "subtract(%old, %one)", 0),
    ({"limit": "%same"}, "add(%old, %one)", 10),  # no trip changes it
    ({}, "multiply(%old, %one)", None),
    ({}, "add(%old, %old)", None),
  ],
)
def test_a_counter_against_a_constant(cond, step, count):
  text = main(while_(), body("body", step=step), condition("cond", **cond))
  assert times(text) == {"copy.body": count}


def test_the_compilers_note_goes_first():
  note = ', backend_config={"known_trip_count":{"n":"7"}}'
  text = main(while_(note=note), body("body"), condition("cond"))
  assert times(text) == {"copy.body": 7}


@pytest.mark.parametrize("end", ["%next", "%i"])
def test_a_limit_that_changes_is_not_known(end):
  text = main(while_(), body("body", end=end), condition("cond", limit="%same"))
  assert times(text) == {"copy.body": None}


def test_a_start_that_is_not_known():
  text = main(while_(), body("body"), condition("cond"))
  text = text.replace("copy(%first)", "copy(%n)")
  (copy,) = copies.weight_copies(text, chip="v6e")
  assert copy.times is None
  assert copy.seconds > 0
  assert copy.total_seconds is None


def test_a_test_within_a_fusion():
  fused = """%test (a: s32[], b: s32[]) -> pred[] {
  %b = s32[] parameter(1)
  %a = s32[] parameter(0)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}
"""
  cond = condition("cond").replace(
    "compare(%i, %limit), direction=LT",
    "fusion(%i, %limit), kind=kLoop, calls=%test",
  )
  assert times(main(while_(), fused, body("body"), cond)) == {"copy.body": 30}


def nested(step="add(%old, %one)"):
  extra = (
    f"  %again = {CARRY} tuple(%zero.1, %b.outer, %same)\n"
    "  %zero.1 = s32[] constant(0)\n" + while_("inner_cond", "inner", "%again")
  )
  return main(
    while_("outer_cond", "outer"),
    body("inner"),
    condition("inner_cond", limit="%same"),
    body("outer", extra, step),
    condition("outer_cond"),
  )


def test_loops_within_loops_multiply():
  # The inner limit comes from outside of both.
  assert times(nested()) == {"copy.outer": 30, "copy.inner": 300}


def test_within_a_loop_of_unknown_count_nothing_is_known():
  assert times(nested("multiply(%old, %one)")) == {
    "copy.outer": None,
    "copy.inner": None,
  }


def test_the_counter_of_an_outer_loop_is_another():
  text = nested().replace("%b.outer, %same)", "%b.outer, %i)", 1)
  text = text.replace("add(%old, %one)", "add(%same, %one)", 1)
  text = text.replace("compare(%i, %same)", "compare(%i, %limit)")
  assert times(text) == {"copy.outer": 30, "copy.inner": None}


def test_the_seconds_of_all_trips():
  text = main(while_(), body("body"), condition("cond"))
  (copy,) = copies.weight_copies(text, chip="v6e")
  assert copy.total_seconds == pytest.approx(30 * copy.seconds)


BRANCH = f"""%branch.N (q: bf16[]) -> bf16[] {{
  %q = {W} parameter(0)
  ROOT %copy.N = {W_T} copy(%q)
}}
"""


@pytest.mark.parametrize(
  "names",
  [
    "branch_computations={%branch.1, %branch.2}",
    "true_computation=%branch.1, false_computation=%branch.2",
  ],
)
def test_branches_count_once_and_say_so(names):
  text = main(
    f"  ROOT %c = {W_T} conditional(%n, %w.0, %w.0), {names}",
    BRANCH.replace("N", "1"),
    BRANCH.replace("N", "2"),
  )
  listed = copies.weight_copies(text)
  assert [(c.name, c.times, c.conditional) for c in listed] == [
    ("copy.1", 1, True),
    ("copy.2", 1, True),
  ]


def test_what_is_called_twice_counts_twice():
  text = main(
    f"  %a = {W_T} call(%w.0), to_apply=%branch.1\n"
    f"  ROOT %b = {W_T} call(%w.0), to_apply=%branch.1",
    BRANCH.replace("N", "1"),
  )
  listed = copies.weight_copies(text)
  assert [(c.name, c.conditional) for c in listed] == [("copy.1", False)] * 2
