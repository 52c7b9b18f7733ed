"""What all examples in docstrings share."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _what_an_example_defines_is_its_own(doctest_namespace: dict[str, object]) -> None:
    """A class that an example defines is a user's, and not one of the module whose docstring it stands in."""
    doctest_namespace["__name__"] = "__main__"
