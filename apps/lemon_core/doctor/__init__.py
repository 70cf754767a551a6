"""Looking at an installation: checks and their report, readiness, and a bundle for support.

Nothing here needs a running Lemon, a usable configuration or a whole database, and nothing is
changed by looking.
"""

from lemon_core.doctor.context import (
    DailyQuota,
    DoctorArea,
    DoctorCheck,
    DoctorContext,
    doctor_context,
)
from lemon_core.doctor.report import Check, Finding, Report, failed, passed, skipped, warned

__all__ = [
    "Check",
    "DailyQuota",
    "DoctorArea",
    "DoctorCheck",
    "DoctorContext",
    "Finding",
    "Report",
    "doctor_context",
    "failed",
    "passed",
    "skipped",
    "warned",
]
