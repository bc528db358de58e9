"""Settings of retention: when a host frees what nobody needs any more, and how much it may hold."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from tightloop.settings.section import Count, Section

GB = 1_000_000_000


class RetentionSettings(Section):
    """Collections by a schedule, and bounds of the disk. The age of what goes is `server.retention_days`.

    See docs/operate/files.md.
    """

    every_h: Annotated[float | None, Field(ge=1 / 60, le=24 * 366)] = None
    """Hours between two runs of `tightloop gc` on each host with workspaces, by a schedule of Temporal. Empty: none."""
    max_gb: Annotated[float | None, Field(gt=0)] = None
    """Size that the state home may have. From there on what ended longest ago is freed earlier. Needs `every_h`."""
    min_free_gb: Annotated[float | None, Field(gt=0)] = None
    """Likewise the room that stays free on the disk of the state home."""
    memory_days: Count | None = None
    """How long the memory keeps a failure that did not come again. Empty: up to `memory.max_failures`."""

    @model_validator(mode="after")
    def _collects(self) -> "RetentionSettings":
        if self.is_bounded and self.every_h is None:
            raise ValueError("max_gb and min_free_gb need collections. Set every_h, such as 24")
        return self

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound of the disk."""
        return self.max_gb is not None or self.min_free_gb is not None

    @property
    def every(self) -> timedelta | None:
        """Time between two collections; None: there are none."""
        return None if self.every_h is None else timedelta(hours=self.every_h)

    def used_share(self, *, held_bytes: int, free_bytes: int, disk_bytes: int) -> float:
        """Return how much of the nearer bound is used: 1 where it is reached, 0 without bounds.

        Args:
            held_bytes: size of the state home.
            free_bytes: room on its disk.
            disk_bytes: size of its disk.
        """
        shares = [0.0]
        if self.max_gb is not None:
            shares.append(held_bytes / (self.max_gb * GB))
        if self.min_free_gb is not None:
            shares.append((disk_bytes - free_bytes) / max(disk_bytes - self.min_free_gb * GB, 1.0))
        return max(shares)
