"""Tables hold what the records hold, in every format, and say what is missing, diverged, or not measured."""

from typing import Any

from skewconv.config import to_dict
from skewconv.reproduce.rows import Changes, Row, chosen_rows, config_of
from skewconv.reproduce.table import markdown, table_of

NAMES = ("lipconvnet-5/soc", "lipconvnet-5/bcop", "lipconvnet-5/cayley")
ROWS = chosen_rows("table2", "cifar10", NAMES, "cpu")


def record(index: int, seed: int, clean: float, status: str = "finished", rows: list[Row] = ROWS) -> dict[str, Any]:
    config = to_dict(config_of(rows[index], "cpu", seed))
    results: dict[str, Any] = {"row": rows[index].name, "scale": "cpu", "status": status}
    if status == "finished":
        certified = {"36/255": clean / 2, "72/255": clean / 3, "108/255": clean / 4}
        results |= {"images": 10000, "split": "test", "clean": clean, "certified": certified, "epochs": 9.0 + seed}
    return {"seed": seed, "config": config, "results": results}


def times(quiet: bool) -> dict[str, Any]:
    rows = {ROWS[0].name: {"seconds_an_epoch": 12.34, "cpu_seconds_an_epoch": 23.4}}
    return {"results": {"quiet": quiet, "rows": rows}}


RECORDS = [record(0, 0, 0.50), record(0, 1, 0.52), record(0, 2, 0.54), record(1, 0, 0.0, "diverged")]


def test_seeds_are_averaged_and_their_spread_is_shown_beside_the_papers_figure() -> None:
    table = table_of("table2", "cifar10", ROWS, RECORDS)
    soc, bcop, cayley = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert soc["seeds"] == "0, 1, 2"
    assert str(soc["clean, %"]) == "52.00 ± 2.00"
    assert str(soc["certified at 36/255, %"]) == "26.00 ± 1.00"
    assert str(soc["the paper: clean, %"]) == "75.78"
    assert str(soc["the paper: certified at 36/255, %"]) == "59.16"
    assert str(soc["the paper: seconds"]) == "31.1"
    assert "seconds an epoch" not in soc
    # A row that diverged or was not run says so.
    assert (bcop["clean, %"], bcop["certified at 36/255, %"]) == ("diverged", None)
    assert (cayley["clean, %"], cayley["the paper: clean, %"]) == ("not run", None)


def test_rows_of_minutes_show_their_epochs_and_seconds_of_an_epoch_where_they_were_measured() -> None:
    rows = chosen_rows("flagship", "cifar10", ("minutes/20", "minutes/60"), "cpu")
    records = [record(0, seed, 0.5, rows=rows) for seed in (0, 2)]
    measured = {"quiet": True, "rows": {"minutes/20": {"seconds_an_epoch": 88.6, "cpu_seconds_an_epoch": 150.0}}}
    for times, shown in ((None, None), ({"results": measured}, "88.6")):
        table = table_of("flagship", "cifar10", rows, records, times)
        line, not_run = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        assert (str(line["epochs"]), not_run["epochs"]) == ("10.0 ± 1.4", None)
        assert (str(line["seconds an epoch"]) if "seconds an epoch" in line else None) == shown


def test_the_notes_say_what_was_reduced_and_on_what_it_was_evaluated() -> None:
    notes = " ".join(table_of("table2", "cifar10", ROWS, RECORDS).notes)
    assert "differ from the paper's recipe (its values): epochs" in notes
    assert "epochs 12 (200); precision bf16-mixed (32-true); width 8 (32)" in notes
    assert "series chebyshev (taylor) in some rows" in notes
    assert "Evaluated on 10,000 test images." in notes


def test_changes_of_the_papers_scale_are_told_and_nothing_is_where_there_are_none() -> None:
    for changes, told in ((None, []), (Changes(epochs=2), ["epochs 2 (200)."])):
        one = record(0, 0, 0.5)
        one["config"] = to_dict(config_of(ROWS[0], "paper", 0, changes))
        one["results"]["scale"] = "paper"
        notes = table_of("table2", "cifar10", ROWS, [one]).notes
        assert [note.partition(": ")[2] for note in notes if "recipe" in note] == told


def test_wall_time_is_shown_only_if_the_machine_was_quiet() -> None:
    for quiet, shown in ((True, "12.3"), (False, "23 (CPU)")):
        table = table_of("table2", "cifar10", ROWS, RECORDS, times(quiet))
        first, *others = (row[table.columns.index("seconds an epoch")] for row in table.rows)
        assert (str(first), others) == (shown, [None, None])
        assert any("processor seconds" in note for note in table.notes) is not quiet


def test_markdown_has_a_line_for_each_row() -> None:
    table = table_of("table2", "cifar10", ROWS, RECORDS, times(True))
    body = [line for line in markdown(table).splitlines() if line.startswith("| lipconvnet")]
    assert [line.count("|") for line in body] == [len(table.columns) + 1] * 3
    assert "| 52.00 ± 2.00 |" in body[0]
