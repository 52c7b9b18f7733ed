"""Logs are read as far as they are whole."""

from skewconv.report.collect import TrainingLog
from skewconv.train.logs import read_log

HEAD = "step,epoch,seconds,lr,loss,accuracy,images_per_second,test_clean,test_certified\n"


def test_columns_are_placed_by_fractions_of_epochs(tmp_path):
    rows = [
        "2,0,1,0.1,2.0,0.1,9,,",
        "10,1,5,0.1,1.5,0.3,9,0.4,0.2",
        "15,1,8,0.1,1.0,0.4,9,,",
        "20,2,10,0.1,0.5,0.5,9,0.6,0.3",
    ]
    (tmp_path / "log.csv").write_text(HEAD + "\n".join(rows) + "\n")
    log = TrainingLog.of(read_log(tmp_path / "log.csv"))
    assert log.columns["loss"] == [(0.2, 2.0), (1.0, 1.5), (1.5, 1.0), (2.0, 0.5)]
    assert log.ending_with("_clean") == [(1.0, 0.4), (2.0, 0.6)]
    assert log.seconds_per_epoch == [(1.0, 4.0), (2.0, 5.0)]


def test_rows_that_were_cut_off_and_values_that_are_no_numbers_are_left_out(tmp_path):
    (tmp_path / "log.csv").write_text(HEAD + "2,0,1,0.1,nan,0.1,9,,\n4,0,2,0.1,1.9,0.2,9,,\n\x00garbage\n6,0")
    log = TrainingLog.of(read_log(tmp_path / "log.csv"))
    assert [value for _, value in log.columns["loss"]] == [1.9]
    assert log.ending_with("_clean") == []


def test_a_run_that_was_resumed_has_no_negative_epochs(tmp_path):
    (tmp_path / "log.csv").write_text(HEAD + "1,0,50,0.1,1,0.1,9,,\n2,1,10,0.1,1,0.1,9,,\n3,2,20,0.1,1,0.1,9,,\n")
    assert TrainingLog.of(read_log(tmp_path / "log.csv")).seconds_per_epoch == [(2.0, 10.0)]


def test_no_log_is_an_empty_log(tmp_path):
    assert TrainingLog.of(read_log(tmp_path / "log.csv")).columns == {}
