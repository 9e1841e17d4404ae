"""The hierarchy that callers rely on."""

import pytest

from windrow.comm import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_windrow_error(name):
    assert issubclass(getattr(errors, name), errors.WindrowError)


@pytest.mark.parametrize("name", ["DataError", "RecipeError", "StoreError"])
def test_user_errors_are_value_errors(name):
    assert issubclass(getattr(errors, name), ValueError)


@pytest.mark.parametrize("name", ["CollectiveMismatchError", "DeadlineError", "PeerFailedError"])
def test_errors_between_ranks_share_a_base(name):
    assert issubclass(getattr(errors, name), errors.CommunicationError)
