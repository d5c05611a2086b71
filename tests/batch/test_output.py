"""Durable output: blocks, manifest, lock; what is left after a crash, a damaged disk or a full one."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble_decode.batch.output import Output
from ensemble_decode.batch.results import OutputError
from ensemble_decode.errors import InputError

JOB = {"models": ["a"], "seed": 1}
LINES = 40


def result(number: int) -> bytes:
    return json.dumps({"line": number, "text": f"größer {number}" * (number % 3)}, ensure_ascii=False).encode() + b"\n"


def open_(path, job=JOB, **options):
    return Output(path, job, LINES, **{"order": "input"} | options)


def fill(output, numbers):
    for number in numbers:
        output.add(number, result(number), "field" if number % 10 == 0 else None)
        output.flush()


def expected() -> bytes:
    return b"".join(result(n) for n in range(1, LINES + 1))


def test_results_in_any_order_end_up_in_the_input_s(tmp_path):
    path = tmp_path / "out.jsonl"
    output = open_(path)
    fill(output, range(LINES, 0, -1))
    assert not path.exists()
    output.finish()
    assert path.read_bytes() == expected()
    assert output.tally == {"rows": LINES, "errors": {"field": 4}}
    output.close()
    again = open_(path)
    assert again.complete
    assert again.tally == output.tally
    again.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.lock", "out.jsonl.manifest"]


def test_as_finished_keeps_the_order_of_ends(tmp_path):
    output = open_(tmp_path / "out.jsonl", order="finished")
    numbers = [*range(2, LINES + 1, 2), *range(1, LINES + 1, 2)]
    fill(output, numbers)
    output.finish()
    output.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(map(result, numbers))


@pytest.mark.parametrize("done", [0, 1, 17, LINES])
def test_what_was_flushed_is_there_after_a_crash_and_nothing_else(tmp_path, done):
    path = tmp_path / "out.jsonl"
    output = open_(path)
    fill(output, range(1, done + 1))
    output._files[0].write(b'{"line": 39, "half of a li')  # a block that the crash cut off
    output._files[1].write(b'{"rows": 1, "err')  # a record likewise
    output.close()  # the process is gone: nothing else is written
    again = open_(path)
    assert [n + 1 for n in range(LINES) if again.done[n]] == list(range(1, done + 1))
    fill(again, range(done + 1, LINES + 1))
    again.finish()
    again.close()
    assert path.read_bytes() == expected()


def test_a_result_twice_is_written_once(tmp_path):
    output = open_(tmp_path / "out.jsonl")
    fill(output, [1, 1, *range(1, LINES + 1)])
    output.finish()
    output.close()
    assert (tmp_path / "out.jsonl").read_bytes() == expected()


def test_a_damaged_block_is_done_again_and_said(tmp_path):
    path = tmp_path / "out.jsonl"
    output = open_(path)
    fill(output, range(1, 21))
    output.close()
    data = bytearray((tmp_path / "out.jsonl.part").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "out.jsonl.part").write_bytes(data)
    again = open_(path)
    good = sum(again.done)
    assert 5 < good < 20
    assert "damaged" in again.notes[0]
    assert f"{20 - good} rows" in again.notes[0]
    fill(again, [n + 1 for n in range(LINES) if not again.done[n]])
    again.finish()
    again.close()
    assert path.read_bytes() == expected()


def test_killed_between_the_last_row_and_the_file_in_its_place(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    output = open_(path)
    fill(output, range(1, LINES + 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OutputError, match="40 results are safe"):
            output.finish()
    output.close()
    again = open_(path)
    assert not again.complete
    again.finish()
    again.close()
    assert path.read_bytes() == expected()


def test_a_second_run_is_refused_while_the_first_is_alive(tmp_path):
    path = tmp_path / "out.jsonl"
    first = open_(path)
    program = (
        "import sys, json; from pathlib import Path; from ensemble_decode.batch.output import Output\n"
        "try:\n    Output(Path(sys.argv[1]), {'models': ['a'], 'seed': 1}, 40, order='input').close()\n"
        "except Exception as error:\n    print(error)\n"
    )

    def other() -> str:
        return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True).stdout

    assert f"another run is writing it (process {os.getpid()}" in other()
    first.close()
    assert other() == ""


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"models": ["b"], "seed": 1}, "models"),
        ({"models": ["a"], "seed": 2}, "seed"),
        ({"models": ["a"], "seed": 1, "x": 0}, "x"),
    ],
)
def test_another_job_is_refused_and_named(tmp_path, job, named):
    path = tmp_path / "out.jsonl"
    output = open_(path)
    fill(output, [1])
    output.close()
    with pytest.raises(InputError, match=f"differs \\({named}: "):
        open_(path, job)
    fresh = open_(path, job, overwrite=True)
    assert not any(fresh.done)
    fresh.close()


def test_a_drawn_seed_stays_the_job_s(tmp_path):
    path = tmp_path / "out.jsonl"
    output = open_(path, {"models": ["a"], "seed": None})
    output.set_seed(77)
    fill(output, [1, 2])
    output.close()
    again = open_(path, {"models": ["a"], "seed": None})
    assert again.job["seed"] == 77
    assert sum(again.done) == 2
    again.close()


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    with pytest.raises(InputError, match="overwrite"):
        open_(path)
    assert path.read_text() == "precious\n"
    with pytest.raises(InputError, match="no folder"):
        open_(tmp_path / "nowhere" / "out.jsonl")


def test_a_full_disk_says_what_is_safe_and_the_job_goes_on_later(tmp_path):
    """A real limit on the file's size, in a process of its own."""
    path = tmp_path / "out.jsonl"
    program = (
        "import resource, signal, sys, json; from pathlib import Path\n"
        "from ensemble_decode.batch.output import Output\n"
        "from ensemble_decode.batch.results import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "output = Output(Path(sys.argv[1]), {'models': ['a'], 'seed': 1}, 40, order='input')\n"
        "try:\n"
        "    for n in range(1, 41):\n"
        "        output.add(n, json.dumps({'line': n, 'text': 'x' * 100}).encode() + b'\\n', None); output.flush()\n"
        "except OutputError as error:\n    print(error); output.close()\n"
    )
    told = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert "results are safe; run the same command again" in told.stdout, told.stderr
    safe = int(told.stdout.split(" results are safe")[0].split()[-1])
    again = open_(path)
    assert sum(again.done) == safe > 3
    again.close()


@pytest.mark.parametrize("ending", ["jsonl.gz", "parquet"])
def test_packed_outputs_do_not_depend_on_blocks_or_time(tmp_path, ending):
    found = []
    for name, numbers in (("a", range(1, LINES + 1)), ("b", range(LINES, 0, -1))):
        output = open_(tmp_path / f"{name}.{ending}")
        fill(output, numbers)
        output.finish()
        output.close()
        found.append((tmp_path / f"{name}.{ending}").read_bytes())
    assert found[0] == found[1]
    if ending == "jsonl.gz":
        assert gzip.decompress(found[0]) == expected()
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
        assert rows == [json.loads(line) for line in expected().splitlines()]


# -- where an output may lie -----------------------------------------------------------------------------------------


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "real.jsonl", tmp_path / "out.jsonl"
    link.symlink_to(target)  # which does not exist yet
    output = open_(link)
    fill(output, range(1, LINES + 1))
    output.finish()
    output.close()
    assert link.is_symlink()
    assert target.read_bytes() == link.read_bytes() == expected()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "out.jsonl"]
    assert (tmp_path / "disk" / "real.jsonl.manifest").exists()
    again = open_(target)  # the same job, by its other name
    assert again.complete
    again.close()


def test_what_cannot_be_written_is_told_in_one_sentence(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match=r"folder\.jsonl: cannot be written: it is a folder"):
        open_(tmp_path / "folder.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match=r"it is a device or a pipe; expected a file, or - for standard output"):
        open_(tmp_path / "pipe.jsonl")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl: .*leads in a circle"):
        open_(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="there is no folder"):
        open_(tmp_path / "nowhere" / "out.jsonl")
    for place in ("/proc/out.jsonl", "/sys/out.jsonl"):  # not even root may write here
        with pytest.raises(InputError, match=f"{place}: cannot be written: "):
            open_(Path(place))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folders_and_files_are_told(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(InputError, match=r"out\.jsonl: cannot be written: "):
        open_(tmp_path / "closed" / "out.jsonl")
    (tmp_path / "out.jsonl").write_text("")
    (tmp_path / "out.jsonl").chmod(0o400)
    with pytest.raises(InputError, match="the file is read-only"):
        open_(tmp_path / "out.jsonl", overwrite=True)


# -- shards ----------------------------------------------------------------------------------------------------------


def test_an_output_in_shards(tmp_path):
    path = tmp_path / "out-{shard}.jsonl"
    output = open_(path, shard_rows=15)
    fill(output, range(LINES, 0, -1))
    output.finish()
    output.close()
    shards = sorted(tmp_path.glob("out-?????.jsonl"))
    assert [shard.name for shard in shards] == [f"out-0000{n}.jsonl" for n in range(3)]
    assert [len(shard.read_bytes().splitlines()) for shard in shards] == [15, 15, 10]
    assert b"".join(shard.read_bytes() for shard in shards) == expected()
    again = open_(path, shard_rows=15)
    assert again.complete
    again.close()
    shards[1].unlink()
    with pytest.raises(InputError, match=r"out-00001\.jsonl was completed and is gone"):
        open_(path, shard_rows=15)
    fresh = open_(path, shard_rows=15, overwrite=True)
    assert not list(tmp_path.glob("out-?????.jsonl"))
    fresh.close()


def test_shards_of_somebody_else_are_not_overwritten(tmp_path):
    (tmp_path / "out-00007.jsonl").write_text("precious\n")
    with pytest.raises(InputError, match=r"out-00007\.jsonl exists"):
        open_(tmp_path / "out-{shard}.jsonl", shard_rows=5)


# -- more lines ------------------------------------------------------------------------------------------------------

FIRST, LONGER = ({"models": ["a"], "seed": 1, "input": {"lines": n, "bytes": n}} for n in (25, LINES))


def part_of(path, order="input", ending=range(1, 26), shard_rows=None):
    output = Output(path, FIRST, 25, order=order, shard_rows=shard_rows)
    fill(output, ending)
    return output


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "json"])
@pytest.mark.parametrize("complete", [True, False])
def test_lines_are_appended_to_a_job(tmp_path, ending, complete):
    path = tmp_path / f"out.{ending}"
    output = part_of(path, ending=range(25, 0, -1) if complete else range(3, 12))
    if complete:
        output.finish()
    output.close()
    with pytest.raises(InputError, match=r"has grown from 25 to 40 lines since the job began\. append finishes"):
        open_(path, LONGER, continues=lambda known: known["lines"] == 25)
    with pytest.raises(InputError, match="another input: it had 25 lines"):
        open_(path, LONGER, append=True)
    again = open_(path, LONGER, append=True, continues=lambda known: True)
    assert [n + 1 for n in range(LINES) if again.done[n]] == (list(range(1, 26)) if complete else list(range(3, 12)))
    assert again.tally["errors"] == ({"field": 2} if complete else {"field": 1})
    again.close()  # and it was killed here
    again = open_(path, LONGER, append=True, continues=lambda known: False)  # is the job's input by now
    fill(again, [n + 1 for n in range(LINES) if not again.done[n]])
    again.finish()
    assert again.tally == {"rows": LINES, "errors": {"field": 4}}
    again.close()
    whole = Output(tmp_path / f"whole.{ending}", JOB, LINES, order="input")
    fill(whole, range(1, LINES + 1))
    whole.finish()
    whole.close()
    assert path.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()


def test_appended_lines_come_last_in_the_order_of_ends_and_in_new_shards(tmp_path):
    path, order = tmp_path / "out-{shard}.jsonl", [*range(25, 0, -1)]
    output = part_of(path, order="finished", ending=order, shard_rows=10)
    output.finish()
    output.close()
    again = open_(path, LONGER, order="finished", shard_rows=10, append=True, continues=lambda known: True)
    fill(again, range(LINES, 25, -1))
    again.finish()
    again.close()
    found = b"".join(shard.read_bytes() for shard in sorted(tmp_path.glob("out-?????.jsonl")))
    assert found == b"".join(map(result, [*order, *range(LINES, 25, -1)]))


def test_killed_while_a_finished_output_was_opened_again_nothing_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    output = part_of(path)
    output.finish()
    output.close()
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Output, "_write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_(path, LONGER, append=True, continues=lambda known: True)
    assert path.read_bytes() == before
    again = open_(path, LONGER, append=True, continues=lambda known: True)
    assert sum(again.done) == 25
    again.close()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_lines_cannot_be_appended_to_finished_tables(tmp_path, ending):
    output = part_of(tmp_path / f"out.{ending}")
    output.finish()
    output.close()
    with pytest.raises(InputError, match=f"rows cannot be added to a finished {ending} file"):
        open_(tmp_path / f"out.{ending}", LONGER, append=True, continues=lambda known: True)


def test_a_finished_output_that_was_edited_is_not_continued(tmp_path):
    path = tmp_path / "out.jsonl"
    output = part_of(path)
    output.finish()
    output.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(InputError, match="was changed since it was completed"):
        open_(path, LONGER, append=True, continues=lambda known: True)
