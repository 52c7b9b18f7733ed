"""How large a file may become: which form each layer takes, so that all of them together fit."""

from collections.abc import Mapping, Sequence

from skewconv.errors import ExportError
from skewconv.nn.lowering import Chooser, Offers
from skewconv.nn.primitives import Choice, Form

#: without a limit of the user's, a file holds so many times the numbers that were trained,
MANY_TIMES = 8
#: unless the whole network would then take so many times as long
WORTH_IT = 2.0


def within_budget(parameters: int, most_numbers: float | None = None, *, prefer: Sequence[Form] = ()) -> Chooser:
    """A chooser for :func:`skewconv.freeze`: the fastest forms that fit.

    Each layer begins with its fastest form. While all together are too large, the layer that saves most numbers for
    the multiply-adds it costs takes a smaller one.

    Args:
        parameters: how many numbers were trained.
        most_numbers: how many may be stored at the most, all layers together; by default eight times as many as were
            trained, and more where that makes the network twice as fast.
        prefer: forms that are taken where a layer has them, before its fastest.
    """

    def choose(offers: Offers, fixed: int) -> Mapping[str, Choice]:
        fastest = {name: _first(choices, prefer) for name, choices in offers.items()}
        room = (MANY_TIMES * parameters if most_numbers is None else most_numbers) - fixed
        chosen = _shrunk(dict(fastest), offers, room)
        if most_numbers is None:
            slow, fast = (sum(choice.cost for choice in each.values()) for each in (chosen, fastest))
            return fastest if slow > WORTH_IT * fast else chosen
        if (least := sum(choice.numbers for choice in chosen.values())) > room:
            raise ExportError(
                f"the smallest forms of all layers hold {least + fixed:,} numbers, and the size allows "
                f"{int(most_numbers):,}: raise --max-mb, store --weights float16, or train a smaller network"
            )
        return chosen

    return choose


def _first(choices: Sequence[Choice], prefer: Sequence[Form]) -> Choice:
    return next((choice for form in prefer for choice in choices if choice.form == form), choices[0])


def _shrunk(chosen: dict[str, Choice], offers: Offers, room: float) -> dict[str, Choice]:
    while sum(choice.numbers for choice in chosen.values()) > room:
        smaller = [
            ((other.cost - now.cost) / (now.numbers - other.numbers), name, other)
            for name, now in chosen.items()
            for other in offers[name]
            if other.numbers < now.numbers
        ]
        if not smaller:
            break
        _, name, other = min(smaller, key=lambda each: each[:2])
        chosen[name] = other
    return chosen
