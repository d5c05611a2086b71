"""Tables show the record's figures."""

from support.bench import MODELS, cell

from ensemble_decode.bench import tables
from ensemble_decode.bench.record import Record


def test_figures_of_a_table(record):
    waits, makeup = tables.latency_tables(record, "asked")
    single, unite = (
        dict(zip([*waits.columns, *makeup.columns], [*a, *b], strict=True))
        for a, b in zip(waits.rows, makeup.rows, strict=True)
    )
    assert single["between tokens ms"] == "200.0 (150.0 to 300.0)"
    assert unite["p99"] == "900.0 (750.0 to 1050.0)"
    assert (unite["forwards %"], unite["fusion %"], unite["host %"]) == ("60 + 20", "10.0", "10.0")
    assert unite["cache MB"] == "2.0"
    assert unite["J/token"] == "not reported"
    assert single["tokens/s"] == "5.0 (3.8 to 7.5)"


def test_shares_and_energy_of_a_table():
    made = Record.begin(MODELS, "float32", ["cuda:0"], "NVML")
    made.cells = [cell("safe", [0.1, 0.1], drafted=8, accepted=6, ensembled=3, joules=5.0)]
    _, table = tables.latency_tables(made, "asked")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["accepted %"], row["ensembled %"], row["J/token"]) == ("75", "30", "0.500")


def test_ratios_are_taken_within_rounds(record):
    """Rounds drift (0.1, 0.2, 0.4); the median of the rounds' ratios (2, 1.5, 1) is not the ratio of the medians."""
    table = tables.ratio_table(record, "asked")
    assert table.rows[0][2] == "1.00 (1.00 to 1.00)"
    assert table.rows[1][2] == "1.50 (1.25 to 1.75)"
