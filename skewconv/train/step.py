"""Steps and evaluations: losses and attacks, schedule and plan of a run, the step itself, and metrics.

Margins are in units of the logits. A network that is L-Lipschitz from pixels to logits turns a margin m into a
certified radius m / (sqrt(2) L). Attacks are in l-infinity.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from skewconv.certify import Certifier, certified_accuracy, mean_radius, perturb
from skewconv.certify.certifier import margin_of
from skewconv.certify.perturb import PGD, Model
from skewconv.config import OptimConfig, RegimeConfig, TrainConfig
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import evaluating
from skewconv.nn.soc.skew_filter import SkewFilter
from skewconv.progress import Tick
from skewconv.records import radius_name
from skewconv.train.data.dataset import Batches, Split, seeded_generator, spread, to_device

# Kept for what is not measured: the last lines printed, and the end of the interpreter.
_SAFETY = 0.01
_EXIT_SECONDS = 1.0
# The first steps build kernels and caches, and are no measure of the pace.
_WARM_UP_STEPS = 2
_DECAY = 0.1
# The share of a run in which the rate of one-cycle rises, and the second beta of AdamW.
_WARM_UP, _BETA2 = 0.2, 0.99


def loss_of(logits: Tensor, labels: Tensor, config: RegimeConfig) -> Tensor:
    """The loss of a batch: (N, classes), (N,) -> ()."""
    logits = logits.float()
    if config.offset:
        logits = logits - config.offset * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    # Divided again, so that the scale sets the temperature and not the size of the gradient.
    return F.cross_entropy(logits * config.logit_scale, labels) / config.logit_scale


def hkr_loss(scores: Tensor, labels: Tensor, *, alpha: float = 10.0, margin: float = 1.0) -> Tensor:
    """The hinge Kantorovich-Rubinstein loss of a 1-Lipschitz network: alpha mean relu(margin - y f) - KR.

    KR is the mean of f over the images of a class minus its mean over all others; for a 1-Lipschitz f it is at most
    the Wasserstein-1 distance of the two, and the largest such f attains it. y is 1 on the class and -1 elsewhere
    (Serrurier et al., Achieving robustness in classification using optimal transport with hinge regularization, 2021).

    >>> hkr_loss(torch.tensor([3.0, 1.0, -2.0]), torch.tensor([1, 1, 0]), alpha=12.0, margin=2.0).item()
    0.0

    Args:
        scores: (N,) or (N, 1) for two classes, of which 1 is the positive one; or (N, C), each class against the rest.
        labels: (N,) int64.
        alpha: weight of the hinge; 0 leaves the dual of the Wasserstein-1 distance.
        margin: of the hinge, in units of the scores.
    """
    scores = scores.reshape(len(labels), -1)
    classes = torch.arange(scores.shape[1], device=labels.device) if scores.shape[1] > 1 else labels.new_ones(1)
    positive = labels[:, None] == classes
    # A class without an image in the batch has no mean, and adds nothing.
    inside, outside = ((scores * mask).sum(0) / mask.sum(0).clamp_min(1) for mask in (positive, ~positive))
    hinge = F.relu(margin - torch.where(positive, scores, -scores)).mean()
    return alpha * hinge - (inside - outside).mean()


def random_start(shape: torch.Size | tuple[int, ...], epsilon: float, generator: Generator) -> Tensor:
    """Uniform in [-epsilon, epsilon], drawn on the CPU: the same on every device."""
    return torch.empty(shape).uniform_(-epsilon, epsilon, generator=generator)


def pgd_survivors(model: Model, images: Tensor, labels: Tensor, regime: RegimeConfig, generator: Generator) -> Tensor:
    """(N,) bool: images classified correctly before, and, clipped, under PGD after every restart."""
    epsilon = regime.epsilon
    attack = PGD("linf", regime.pgd_steps, step_size=regime.pgd_step / epsilon, loss="cross-entropy")
    radii = images.new_full((len(images),), epsilon)
    with torch.no_grad():
        standing = model(images).argmax(1) == labels
    for _ in range(regime.pgd_restarts):
        index = standing.nonzero()[:, 0]
        if not len(index):
            break
        # Drawn for all images, so that the starts of one do not depend on the fate of the others.
        start = random_start(images.shape, epsilon, generator).to(images)[index]
        attacked, _ = attack.climb(model, images[index], labels[index], radii[index], start)
        with torch.no_grad():
            standing[index] = model(attacked).argmax(1) == labels[index]
    return standing


def lr_factor(config: OptimConfig, done: float) -> float:
    """The learning rate as a share of the highest one; by the share `done`, so that a budget completes it."""
    done = min(max(done, 0.0), 1.0)
    if config.schedule == "steps":
        # Multiples such as 50/200 are not exact in binary; the tolerance is far below a step of any run.
        return 0.1 ** sum(done >= milestone - 1e-12 for milestone in config.milestones)
    # From a twentieth up: the first step must move the weights, or it is lost.
    if done < _WARM_UP:
        return 0.05 + 0.95 * done / _WARM_UP
    return 1 - (done - _WARM_UP) / (1 - _WARM_UP)


class Plan:
    """The share of a run that is done: of a number of steps, or of a budget of seconds that began at `began`.

    Steps depend on nothing else, so a resumed run repeats them. In a budget the rest of the schedule is spread, after
    every step, over the steps for which time is left: if the pace changes the schedule only bends, and ends in time.
    """

    def __init__(
        self,
        steps: int | None = None,
        seconds: float = 0.0,
        *,
        step: int = 0,
        done: float = 0.0,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.seconds, self.step, self._clock = steps, seconds, step, clock
        self.done = done if steps is None else step / steps
        self.began = clock() if began is None else began
        #: seconds a step, an exponential moving average
        self.pace = 0.0
        #: seconds that the last evaluation takes; in a budget, the last checkpoints too
        self.reserve = 0.0
        self._count, self._last, self._warm = 0, clock(), clock()

    @property
    def spent(self) -> float:
        return self._clock() - self.began

    def pause_ended(self) -> None:
        """The time since the last step (an evaluation, a checkpoint) is no step."""
        self._last = self._clock()

    def advance(self) -> None:
        now = self._clock()
        latest, self._last, self._count, self.step = now - self._last, now, self._count + 1, self.step + 1
        self.pace += (1.0 if self._count <= _WARM_UP_STEPS else _DECAY) * (latest - self.pace)
        self._warm = now if self._count <= _WARM_UP_STEPS else self._warm
        if self.steps is not None:
            self.done = self.step / self.steps
            return
        steps_left = self.time_to_train() / self.pace if self.pace > 0 else 1.0
        # Less than half a step to go: another one would end further from the promise than none.
        self.done = 1.0 if steps_left < 0.5 else self.done + (1 - self.done) / max(1.0, steps_left + 1)

    def time_to_train(self) -> float:
        return self.seconds * (1 - _SAFETY) - _EXIT_SECONDS - self.reserve - self.spent

    def seconds_left(self) -> float:
        if self.steps is None:
            return max(0.0, self.seconds - self.spent)
        # A step with its share of the evaluations and checkpoints since the warm-up.
        count = self._count - _WARM_UP_STEPS
        pace = (self._clock() - self._warm) / count if count > 0 else self.pace
        return (self.steps - self.step) * pace + self.reserve


def squared_norms(model: nn.Module) -> Tensor:
    """The sum of the squared norm bounds of SOC layers whose scale is learned: the spectral-norm regulariser."""
    layers = [m for m in model.modules() if isinstance(m, SkewFilter) and m.scale_angle is not None]
    return torch.stack([(layer.norm_bound * layer.scale()) ** 2 for layer in layers]).sum()


class Stepper:
    """A training step on Lightning Fabric; `model` and `optimizer` are without its wrappers, for checkpoints."""

    def __init__(self, config: TrainConfig, fabric: Any, model: nn.Module) -> None:
        self.config, self.fabric, self.model = config, fabric, model
        parameters, optim = [p for p in model.parameters() if p.requires_grad], config.optim
        kind: Any = torch.optim.AdamW if optim.optimizer == "adamw" else torch.optim.SGD
        own: dict[str, Any] = {"momentum": optim.momentum}
        if optim.optimizer == "adamw":
            own = {"betas": (optim.momentum, _BETA2)}
        # One pass over the parameters in place of ten; with a gradient scaler Fabric could not clip gradients.
        own["fused"] = fabric.device.type in ("cpu", "cuda") and config.precision != "16-mixed"
        self.optimizer: Optimizer = kind(parameters, lr=optim.lr, weight_decay=optim.weight_decay, **own)
        self._model, self._optimizer = fabric.setup(model, self.optimizer)

    def step(self, images: Tensor, labels: Tensor, *, done: float, epoch: int, step: int) -> Tensor:
        """One step on this process's share of a batch: (2,) its mean loss and accuracy, on the device."""
        self._model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optim.lr * lr_factor(self.config.optim, done)
        logits = self._model(self._attacked(images, labels, epoch, step))
        loss = loss_of(logits, labels, self.config.regime)
        if self.config.regime.norm_penalty:
            loss = loss + self.config.regime.norm_penalty * squared_norms(self.model)
        self.fabric.backward(loss)
        if self.config.optim.clip is not None:
            self.fabric.clip_gradients(
                self._model, self._optimizer, max_norm=self.config.optim.clip, error_if_nonfinite=False
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        return torch.stack([loss.detach(), (logits.argmax(1) == labels).float().mean()])

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def precision(self) -> Any:
        """Fabric's plugin for the precision; its state is that of the gradient scaler, empty if there is none."""
        return self.fabric.strategy.precision

    def finite(self) -> bool:
        with torch.no_grad():
            return all(bool(torch.isfinite(p).all()) for p in self.model.parameters())

    def _attacked(self, images: Tensor, labels: Tensor, epoch: int, step: int) -> Tensor:
        """One signed gradient step from a random start (Wong et al. 2020), drawn as a single process would."""
        regime = self.config.regime
        if regime.regime != "adversarial":
            return images
        generator = seeded_generator(self.config.seed, epoch, f"attack {step}")
        shape = (len(images) * self.fabric.world_size, *images.shape[1:])
        starts = random_start(shape, regime.epsilon, generator)[self.fabric.global_rank * len(images) :]
        start = to_device(starts[: len(images)], images.device).to(images)
        radii, size = images.new_full((len(images),), regime.epsilon), regime.fgsm_step / regime.epsilon
        # The network itself and not its wrapper: this gradient is of the images only.
        with self.fabric.autocast():
            return perturb.fgsm(self.model, images, labels, radii, start=start, step_size=size)


@dataclass(frozen=True)
class Metrics:
    """Accuracies as shares of `images`; None where the regime does not measure them."""

    images: int
    clean: float
    certified: dict[str, float] | None = None
    lipschitz_upper_bound: float | None = None
    mean_radius: float | None = None
    attacked: float | None = None
    attacked_images: int | None = None

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    model: nn.Module,
    split: Split,
    config: TrainConfig,
    *,
    images: int | None = None,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Tick | None = None,
) -> Metrics:
    """The metrics of a network, in eval mode, on the images of a split; regime, radii and attack are the config's.

    `quick` takes radii in the network's own precision, without the proof that covers rounding, and no attack: to
    monitor a run, not to report it. An exception of `progress` ends the evaluation.
    """
    chosen = spread(split, images)

    def batches(some: Split) -> Iterator[tuple[Tensor, Tensor]]:
        size, done = min(config.loading.eval_batch_size, len(some)), 0
        for batch in Batches(some, size, seed=0, shuffle=False, drop_last=False, device=device):
            yield batch
            done += len(batch[1])
            if progress is not None:
                progress(done, len(some))

    with evaluating(model):
        if config.regime.regime == "provable":
            certifier = None if quick else Certifier(model, split.image_shape, device)
            lipschitz = certifier.lipschitz if certifier else lipschitz_upper_bound(model, split.image_shape)
            right, found = 0, []
            with torch.inference_mode():
                for x, labels in batches(chosen):
                    if certifier is None:
                        logits = model(x)
                        predictions = logits.argmax(1)
                        found.append(margin_of(logits, labels).clamp_min(0) / (math.sqrt(2) * lipschitz))
                    else:
                        predictions, _, radii, _ = certifier(x, labels)
                        found.append(radii)
                    right += int((predictions == labels.to(predictions.device)).sum())
            every = torch.cat(found)
            shares = certified_accuracy(every, config.radii)
            certified = dict(zip(map(radius_name, config.radii), shares, strict=True))
            return Metrics(len(every), right / len(every), certified, lipschitz, mean_radius(every))
        with torch.inference_mode():
            right = sum(int((model(x).argmax(1) == labels).sum()) for x, labels in batches(chosen))
        metrics = Metrics(len(chosen), right / len(chosen))
        if config.regime.regime != "adversarial" or quick:
            return metrics
        attacked = spread(chosen, config.regime.attack_images)
        generator = Generator().manual_seed(config.seed)
        survivors = (pgd_survivors(model, x, labels, config.regime, generator) for x, labels in batches(attacked))
        share = sum(int(each.sum()) for each in survivors) / len(attacked)
        return replace(metrics, attacked=share, attacked_images=len(attacked))
