"""Fit the rates that the files of ``skewconv/ops/engines`` state to timings of ``bench_plan.py``, and print them.

    python benchmarks/bench_plan.py && python benchmarks/bench_plan.py --random 400 --seed 1
    python benchmarks/fit_plan.py benchmarks/records/plan.json benchmarks/records/plan-random.json

First the rates of each form are fitted alone, to the relative errors of its times, none negative. Then all move
together, to where the engines they choose are the fastest: a soft choice becomes a hard one on the way.
With ``--form tiles`` the rates of that form alone are fitted, and the others stay as they are: its times are taken as
multiples of the times, and estimates, of the engine that would be chosen without it.
Prints: the rates to paste, and how many shapes the choice is over 1.15 for, before and after.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import ENGINES
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Counts, Request
from skewconv.ops.plan import reachable
from skewconv.ops.polynomials import polynomial

CLAIM = 1.15
STEPS = 3000


def request_of(row: dict) -> Request:
    size, m = (row["side"], row["side"]), row["channels"]
    geometry = reachable(Geometry.of((3, 3), row["padding_mode"], 1, 1), size)
    widths, error = ChannelWidths(1, m, m, m), polynomial(2.1, row["degree"], "chebyshev").truncation_error
    return Request(row["batch"], size, geometry, widths, row["degree"], torch.float32, row["training"], "cpu", error)


def costs(row: dict) -> dict[str, Counts]:
    """Of the engines that a plan would compare."""
    request = request_of(row)
    return {e: ENGINES[e].cost(request) for e in row["seconds"] if e in ENGINES and not ENGINES[e].reservation(request)}


class Timings:
    """The forms, their terms and seconds: a row for each shape, a column for each engine, inf where it refuses."""

    def __init__(self, rows: list[dict]) -> None:
        counted = [costs(row) for row in rows]
        kinds = {c.form.name: c.form for counts in counted for c in counts.values()}
        self.forms = sorted(kinds)
        stated = [kinds[name].training if rows[0]["training"] else kinds[name].evaluation for name in self.forms]
        self.stated = torch.tensor(stated, dtype=torch.float64)
        filled = next(iter(counted[0].values()))  # stands where an engine refuses, and is not looked at
        full = [[counts.get(engine, filled) for engine in ENGINES] for counts in counted]
        self.form = torch.tensor([[self.forms.index(c.form.name) for c in counts] for counts in full])
        self.terms = torch.tensor([[c.terms() for c in counts] for counts in full], dtype=torch.float64)
        times = [
            [row["seconds"][engine] if engine in counts else math.inf for engine in ENGINES]
            for row, counts in zip(rows, counted, strict=True)
        ]
        self.seconds = torch.tensor(times, dtype=torch.float64)
        self.served = torch.isfinite(self.seconds)
        # How much slower than the best.
        self.loss = torch.where(self.served, (self.seconds / self.seconds.amin(1, keepdim=True)).log(), 0.0)

    def estimates(self, rates: Tensor) -> Tensor:
        estimates = (self.terms * rates[self.form]).sum(2)
        return torch.where(self.served, estimates, math.inf)

    def regrets(self, rates: Tensor) -> Tensor:
        """The time of the engine chosen over that of the best."""
        choice = self.estimates(rates).argmin(1, keepdim=True)
        return self.loss.gather(1, choice).squeeze(1).exp()


def fit_alone(timings: Timings) -> Tensor:
    rates = torch.zeros(len(timings.forms), timings.terms.shape[2], dtype=torch.float64)
    for number in range(len(timings.forms)):
        chosen = (timings.form == number) & timings.served
        terms, times = timings.terms[chosen].numpy(), timings.seconds[chosen].numpy()
        # A rate of zero could not move in what follows; that of a term that never occurs need not.
        least = 1e-3 * times.mean() / np.where(terms.any(0), terms.mean(0), math.inf)
        rates[number] = torch.from_numpy(np.maximum(_fit(terms, times), least))
    return rates


def fit_one(timings: Timings, name: str) -> Tensor:
    number, rates = timings.forms.index(name), timings.stated.clone()
    here = (timings.form == number) & timings.served
    others = torch.where(here, math.inf, timings.estimates(rates))
    estimate, choice = others.min(1)
    measured = timings.seconds.gather(1, choice[:, None])
    rows = here.any(1) & torch.isfinite(estimate)
    times = (timings.seconds * (estimate[:, None] / measured))[here & rows[:, None]]
    rates[number] = torch.from_numpy(_fit(timings.terms[here & rows[:, None]].numpy(), times.numpy()))
    return rates


def _fit(terms: np.ndarray, times: np.ndarray) -> np.ndarray:
    weights = 1 / times
    for _ in range(30):
        found, _ = nnls(terms * weights[:, None], times * weights)
        # Between the relative error of the estimate and that of the time: neither side is favoured.
        weights = 1 / np.sqrt(np.maximum(terms @ found, 1e-9) * times)
    return found


def fit_choice(timings: Timings, start: Tensor) -> Tensor:
    begin = start.clamp_min(1e-30).log()
    logs = begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([logs], lr=0.03)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.03, total_steps=STEPS)
    times = torch.where(timings.served, timings.seconds, 1.0).log()
    # A little slower is no harm; beyond the claim every bit is.
    harm = (timings.loss - 0.03).clamp_min(0) + 3 * (timings.loss - 0.12).clamp_min(0)
    near = timings.served * (-timings.loss).exp()
    for step in range(STEPS):
        softness = 0.15 * 0.2 ** (step / STEPS)
        estimates = timings.estimates(logs.exp()).log()
        choice = torch.softmax(-estimates / softness, 1)
        errors = torch.where(timings.served, estimates - times, 0.0).abs()
        loss = (choice * harm).sum(1).mean() + 0.02 * (near * errors).sum() / near.sum()
        optimizer.zero_grad()
        (loss + 0.002 * (logs - begin).square().mean()).backward()
        optimizer.step()
        schedule.step()
    return logs.detach().exp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--form", help="fit the rates of this form alone")
    arguments = parser.parse_args()
    rows = [row for path in arguments.records for row in json.loads(path.read_text())["results"]["rows"]]
    for kind, training in (("training", True), ("evaluation", False)):
        # On a single pixel nothing is compared.
        timings = Timings([row for row in rows if row["training"] == training and row["side"] > 1])
        if arguments.form:
            rates = fit_one(timings, arguments.form)
            steps = (("as stated", timings.stated), (arguments.form, rates))
        else:
            alone = fit_alone(timings)
            rates = fit_choice(timings, alone)
            steps = (("each form alone", alone), ("the choice", rates))
        for words, found in steps:
            regrets = timings.regrets(found)
            over = int((regrets > CLAIM).sum())
            print(f"# {words}: {over} of {len(regrets)} shapes over {CLAIM}, worst {regrets.max():.2f}")
        for form, row in zip(timings.forms, rates.tolist(), strict=True):
            if arguments.form not in (None, form):
                continue
            numbers = ", ".join(f"{rate:.3g}" if rate > 1e-20 else "0.0" for rate in row)
            print(f'Form("{form}"): {kind}=Rates({numbers}),')


if __name__ == "__main__":
    main()
