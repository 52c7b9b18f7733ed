"""One training step on Lightning Fabric: forward, backward in parts, update."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skewconv.config import TrainConfig
from skewconv.nn import Normalize
from skewconv.train.adversarial import fgsm_from_start, random_start
from skewconv.train.average import WeightAverage
from skewconv.train.build import build_optimizer
from skewconv.train.data.augment import to_device
from skewconv.train.data.batches import seeded_generator
from skewconv.train.losses import loss_of
from skewconv.train.schedule import factor


def input_lipschitz(model: nn.Module) -> float:
    """Lipschitz constant of the first normalisation of the input in a network; 1 if there is none.

    A network that is 1-Lipschitz behind its normalisation has this constant from pixels to logits.

    >>> from skewconv.models import LipConvnet
    >>> round(input_lipschitz(LipConvnet(5, width=2, std=0.25)), 6)
    4.0
    """
    found = next((module for module in model.modules() if isinstance(module, Normalize)), None)
    return 1.0 if found is None else 1 / float(found.std.min())


class Stepper:
    """The network, its optimiser, and the step that moves them.

    Attributes:
        model: the network itself, for checkpoints.
        average: of its weights, where there is one.
        optimizer: the optimiser itself, for checkpoints.

    Args:
        config: what to train.
        fabric: Lightning Fabric, launched.
        model: the network.
        steps: how many were made before.
    """

    def __init__(self, config: TrainConfig, fabric: Any, model: nn.Module, steps: int = 0) -> None:
        self.config, self.fabric, self.model = config, fabric, model
        self.optimizer: Optimizer = build_optimizer(config.optim, model)
        self._model, self._optimizer = fabric.setup(model, self.optimizer)
        self._lipschitz = input_lipschitz(model) if config.regime.gamma else 1.0
        decay = config.optim.average
        self.average = None if decay is None else WeightAverage(model, decay, steps)

    @property
    def judged(self) -> nn.Module:
        """The network that a run is judged by and leaves behind: the average, where there is one."""
        return self.model if self.average is None else self.average.model

    def step(self, images: Tensor, labels: Tensor, *, done: float, epoch: int, step: int) -> Tensor:
        """One step on this process's share of a batch: (2,) its mean loss and accuracy, on the device.

        Args:
            images: (n, C, H, W).
            labels: (n,).
            done: the share of the schedule that is behind.
            epoch, step: where in the run this is; what an attack starts from depends on it.
        """
        self._model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optim.lr * factor(self.config.optim, done)
        parts = min(self.config.optim.accumulate, len(labels))
        starts = self._starts(images, epoch, step)
        figures = torch.zeros(2, device=images.device)
        chunks = list(zip(*(tensor.tensor_split(parts) for tensor in (images, labels, starts)), strict=True))
        for index, (x, y, start) in enumerate(chunks):
            share = len(y) / len(labels)
            with self.fabric.no_backward_sync(self._model, enabled=index < len(chunks) - 1):
                logits = self._model(self._attacked(x, y, start))
                loss = loss_of(logits, y, self.config.regime, self._lipschitz)
                self.fabric.backward(loss * share)
            figures += share * torch.stack([loss.detach(), (logits.argmax(1) == y).float().mean()])
        if self.config.optim.clip is not None:
            self.fabric.clip_gradients(
                self._model, self._optimizer, max_norm=self.config.optim.clip, error_if_nonfinite=False
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model)
        return figures

    @property
    def lr(self) -> float:
        """The rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def precision(self) -> Any:
        """Fabric's plugin for the precision; its state is that of the gradient scaler, empty if there is none."""
        return self.fabric.strategy.precision

    def finite(self) -> bool:
        """Whether every weight is a number."""
        with torch.no_grad():
            return all(bool(torch.isfinite(p).all()) for p in self.model.parameters())

    def _starts(self, images: Tensor, epoch: int, step: int) -> Tensor:
        """The share of the perturbations a single process would draw that falls to this one."""
        if self.config.regime.regime != "adversarial":
            return images
        generator = seeded_generator(self.config.seed, epoch, f"attack {step}")
        whole = random_start(
            (len(images) * self.fabric.world_size, *images.shape[1:]), self.config.regime.epsilon, generator
        )
        return to_device(whole[self.fabric.global_rank * len(images) :][: len(images)], images.device)

    def _attacked(self, images: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        regime = self.config.regime
        if regime.regime != "adversarial":
            return images
        # The network itself and not its wrapper: this gradient is of the images, and is nobody else's business.
        with self.fabric.autocast():
            return fgsm_from_start(self.model, images, labels, start, regime.epsilon, regime.fgsm_step)
