"""Places in TOML documents."""

from __future__ import annotations

import pytest

from hasten.facts.plan_file import lines_of

DOCUMENT = '''\
# a plan
schema = 1
job = { source = "a", parameters = 1 } # job

[machine]
cores = 2
"odd.key" = """
[[choice]]
technique = "not one"
"""

[[choice]]
technique = "a"
value = [
  1, # ]
  2,
]
speedup.ratio = 2

[[rejected]]
technique = "z"

  [[ "choice" ]]
technique = "b"
[choice.options]
deep = 3

[total]
x = 1
[machine.more]
y = 2
'''


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("schema",), 2),
        (("job", "parameters"), 3),
        (("machine",), 5),
        (("machine", "odd.key"), 7),
        (("choice", 0), 12),
        (("choice", 0, "value"), 14),
        (("choice", 0, "speedup", "ratio"), 18),
        (("rejected", 0), 20),
        (("choice", 1), 23),
        (("choice", 1, "options", "deep"), 26),
        (("machine", "more", "y"), 31),
    ],
)
def test_every_table_and_key_has_the_line_that_states_it(location, line):
    assert lines_of(DOCUMENT)[location] == line


def test_a_statement_of_very_many_lines_ends_the_search():
    found = lines_of("a = 1\nb = [" + "\n1," * 300 + "]\nc = 2\n")
    assert found == {("a",): 1}
