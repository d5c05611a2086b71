"""Results on standard output: each in its turn, and what is told where they cannot be written."""

import io

import pytest

from ensemble_decode.batch.results import OutputError, StandardOutput


def line(number: int) -> bytes:
    return b'{"line": %d}\n' % number


@pytest.mark.parametrize(("order", "expected"), [("input", [1, 2, 3]), ("finished", [3, 1, 2])])
def test_each_is_written_in_its_turn(order, expected):
    stream = io.BytesIO()
    output = StandardOutput(stream, {}, 3, order=order)
    seen = []
    for number in (3, 1, 3, 2):
        output.add(number, line(number), "field" if number == 3 else None)
        seen.append(len(stream.getvalue().splitlines()))
    assert seen == ([0, 1, 1, 3] if order == "input" else [1, 2, 2, 3])
    output.finish()
    assert stream.getvalue() == b"".join(map(line, expected))
    assert (output.complete, output.taken, output.failed, output.tally) == (
        True,
        3,
        1,
        {"rows": 3, "errors": {"field": 1}},
    )


def test_a_line_without_a_result_is_told():
    output = StandardOutput(io.BytesIO(), {}, 2, order="input")
    output.add(2, line(2), None)
    with pytest.raises(OutputError, match="1 lines have no result yet"):
        output.finish()
    assert not output.complete


def test_a_reader_that_went_away_is_told():
    class Closed(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(OutputError, match=r"standard output cannot be written: .*Broken pipe"):
        StandardOutput(Closed(), {}, 2, order="input").add(1, line(1), None)
