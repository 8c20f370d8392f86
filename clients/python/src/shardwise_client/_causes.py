"""Why a lease is not opened or not renewed: each cause is logged once, until an attempt succeeds."""

import logging
from typing import Optional

from ._errors import Problem, ShardwiseError

_log = logging.getLogger("shardwise_client")
# So many causes are remembered. Later ones are logged at the level of debug messages only.
_CAUSES_MAX = 16


class Causes:
    """The failed attempts for one lease. `place` is the URL of its sidecar, with the policy."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._last: Optional[str] = None
        self._logged: set[str] = set()

    def failed(self, what: str, error: ShardwiseError) -> None:
        """An attempt has failed, and another one follows."""
        text = str(error)
        self._last = text if self._place in text else f"{self._place}: {text}"
        # The detail of a problem may count time.
        cause = f"{what}: {error.kind if isinstance(error, Problem) else text}"
        is_new = cause not in self._logged and len(self._logged) < _CAUSES_MAX
        _log.log(logging.WARNING if is_new else logging.DEBUG, "%s: %s", what, self._last)
        if is_new:
            self._logged.add(cause)

    def succeeded(self) -> None:
        """An attempt has succeeded: from now on every cause is new."""
        self._logged.clear()
        self._last = None

    def summary(self) -> str:
        """The sidecar, and the last failure since an attempt succeeded."""
        return self._place if self._last is None else f"the last failure: {self._last}"
