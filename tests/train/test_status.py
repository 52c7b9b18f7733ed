"""The line of figures during a training: what it says of what it does not prove."""

from skewconv.train.logs import Status


def test_certified_accuracy_on_the_way_is_called_an_estimate():
    status = Status(10, 1.5, 3.0, 0.5, 0.7, 0.8, 1000.0, 60.0, clean=0.6, certified=0.41)
    assert "certified (estimate) 41.0%" in status.text()
    assert "test 60.0%" in status.text()
