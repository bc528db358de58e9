"""The proof of success: what was run on the delivered tree, apart from the workspace, and what came of it."""

from tightloop.episode.check import ProofRule
from tightloop.episode.proof.model import (
    ChangedFile,
    CheckRun,
    ConfigurationFile,
    FileChange,
    FileKind,
    Proof,
    ProofFinding,
    ProofRun,
    ProofVerdict,
    TestReport,
    TestsFrom,
)

__all__ = [
    "ChangedFile",
    "CheckRun",
    "ConfigurationFile",
    "FileChange",
    "FileKind",
    "Proof",
    "ProofFinding",
    "ProofRule",
    "ProofRun",
    "ProofVerdict",
    "TestReport",
    "TestsFrom",
]
