"""The sentences about the tables follow from the records, and claim nothing that seeds could have done."""

from typing import Any

from benchmarks.findings import Noise, beside_standard, findings, of_decay, speed, turning_point
from skewconv.reproduce.rows import chosen_rows


def record(depth: int, conv: str, share: float, status: str = "finished") -> dict[str, Any]:
    results = {"status": status, "certified": {"36/255": share}} if status == "finished" else {"status": status}
    return {"config": {"model": {"depth": depth, "conv": conv}}, "results": results}


SEEDS = [record(5, conv, base + step) for conv, base in (("soc", 0.31), ("bcop", 0.30)) for step in (0, 0.01, 0.02)]


def test_one_seed_tells_nothing_and_a_difference_within_the_spread_of_the_seeds_is_noise() -> None:
    (only,) = findings([record(5, "soc", 0.5), record(5, "bcop", 0.1)])
    assert "Too few runs" in only
    noise, order = findings(SEEDS)
    assert "standard deviation of 1.00 points" in noise
    # The means differ by 1.00, their difference has the deviation sqrt(2/3) = 0.82.
    assert order == "SOC above BCOP: this order of the paper cannot be told from noise at depth 5 (+1.00 points)."


def test_larger_differences_hold_or_are_reversed() -> None:
    found = findings([*SEEDS, *(record(d, c, s) for d, c, s in [(10, "soc", 0.4), (10, "bcop", 0.3)])])
    assert "SOC above BCOP: this order of the paper holds at depth 10 (+10.00 points)." in found
    found = findings([*SEEDS, *(record(d, c, s) for d, c, s in [(40, "soc", 0.2), (40, "bcop", 0.3)])])
    assert "SOC above BCOP: this order of the paper is reversed at depth 40 (-10.00 points)." in found
    assert any(each.startswith("SOC is highest at depth 5, with ") for each in found)
    assert "SOC from depth 5 to 40: -12.00 points, it falls." in found
    assert "BCOP from depth 5 to 40: -1.00 points, flat within noise." in found
    deep = [record(20, "soc", 0.42), record(40, "soc", 0.2)]
    assert "SOC from depth 5 to 20: +10.00 points, it rises." in findings([*SEEDS, *deep])
    # A run that diverged has no image certified.
    found = findings([*SEEDS, record(40, "soc", 0.32), record(40, "bcop", 0.0, "diverged")])
    assert "SOC above BCOP: this order of the paper holds at depth 40 (+32.00 points)." in found


def test_the_epoch_from_which_soc_leads_is_that_after_the_last_in_which_it_does_not() -> None:
    def told(soc: list[float], bcop: list[float]) -> list[str]:
        found = [record(5, "soc", 0.5), record(5, "bcop", 0.4)]
        for each, curve in zip(found, (soc, bcop), strict=True):
            each["results"]["curve"] = [{"certified": share} for share in curve]
        return turning_point(found)

    assert "from epoch 3 on (seed 0" in told([0.3, 0.2, 0.4, 0.5], [0.1, 0.3, 0.3, 0.4])[0]
    assert "+20.0, -10.0, +10.0, +10.0)" in told([0.3, 0.2, 0.4, 0.5], [0.1, 0.3, 0.3, 0.4])[0]
    assert "from epoch 1 on" in told([0.3, 0.4], [0.1, 0.3])[0]
    assert "not within 2 epochs" in told([0.3, 0.3], [0.1, 0.3])[0]
    assert turning_point([record(20, "soc", 0.5)]) == []


def times(quiet: bool = True, **seconds: float) -> dict[str, Any]:
    rows = {
        f"lipconvnet-5/{conv}": {"seconds_an_epoch": value, "cpu_seconds_an_epoch": 2 * value, "model": {"width": 8}}
        for conv, value in seconds.items()
    }
    return {"results": {"quiet": quiet, "rows": rows}}


ROWS = chosen_rows("table2", "cifar10", (), "cpu")


def test_the_seconds_of_an_epoch_say_whether_soc_is_faster() -> None:
    (told,) = speed(times(soc=30.0, bcop=40.0), ROWS)
    assert told.startswith("SOC faster than BCOP: this holds on two cores at width 8.")
    assert "lipconvnet-5 0.75 (the paper, on a GPU at width 32, with a costlier parametrization of BCOP: 0.32)" in told
    (told,) = speed(times(soc=44.0, bcop=40.0), ROWS)
    assert "this does not hold" in told
    assert "lipconvnet-5 1.10" in told
    assert speed(times(soc=44.0), ROWS) == speed(None, ROWS) == []


def test_weight_decay_is_weighed_against_noise() -> None:
    shares = {"bcop/0": [46.0], "bcop/0.0001": [45.0], "bcop/0.0005": [40.0], "soc/0.0001": [45.0]}
    assert of_decay(shares, Noise(1.0, 4)) == [
        "Weight decay, BCOP, certified at 36/255 against none: -1.00 points with 0.0001 (within noise), -6.00 points "
        "with 0.0005."
    ]
    assert of_decay(shares, None) == []


def test_a_ranking_and_the_distance_from_standard_convolutions_stand_beside_those_of_the_paper() -> None:
    rows = chosen_rows("table3", "cifar10", ("all",), "cpu")

    def found(*clean: tuple[str, float]) -> list[str]:
        records = [{"results": {"row": row, "clean": share}} for row, share in clean]
        return beside_standard(records, rows, "clean", "standard")

    assert found(("resnet-18/standard", 0.5), ("resnet-18/soc", 0.45), ("resnet-18/bcop", 0.3)) == [
        "resnet-18: from the highest standard, soc, bcop, as in the paper. Points above standard convolutions: "
        "bcop -20.00 (the paper: -2.72), soc -5.00 (the paper: -0.86). Between SOC and standard convolutions lies more "
        "than one point (the paper: less)."
    ]
    # The mean of the seeds counts, and each network is ranked alone.
    deeper = [("resnet-34/soc", 0.9), ("resnet-34/soc", 0.1), ("resnet-34/standard", 0.4)]
    assert found(("resnet-18/soc", 0.3), ("resnet-18/bcop", 0.4), *deeper) == [
        "resnet-18: from the highest bcop, soc; in the paper soc, bcop.",
        "resnet-34: from the highest soc, standard; in the paper standard, soc. Points above standard convolutions: "
        "soc +10.00 (the paper: -1.10). Between SOC and standard convolutions lies more than one point "
        "(the paper: more).",
    ]
    assert found(("resnet-18/soc", 0.3), ("resnet-34/soc", 0.3)) == []
