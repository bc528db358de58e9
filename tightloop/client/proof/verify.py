"""Verification of a proof."""

import asyncio
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tightloop.client.execution import CLOSED_STATUSES
from tightloop.client.proof.envelope import (
    COUNTERSIGNATURE,
    Envelope,
    Signature,
    allowed_signers,
    global_setting,
    namespace_of,
    public_key_of,
    read_envelope,
    signer,
)
from tightloop.client.proof.statement import Result, Statement, read_statement
from tightloop.client.store import Store
from tightloop.client.viewer import Viewer
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.errors import InvalidRequestError, ProofError, ServiceUnavailableError
from tightloop.host.programs import find_trusted_program, trusted_path
from tightloop.loop.model import LoopResult
from tightloop.plan.request import PlanOutcome
from tightloop.value import ArtifactRef, format_count

# Hashing a large working tree for the first time takes minutes.
GIT_SECONDS = 600.0
# Check out raw bytes, regardless of `.gitattributes`.
_ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding !diff\n"
# The repository may be untrusted: no hooks, no fsmonitor, and no conversion of file contents.
_CONFIG = (
    "core.bare=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.autocrlf=false",
    "core.bigFileThreshold=16m",
    # Otherwise git rejects file names that are only invalid on Windows.
    "core.protectNTFS=false",
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "gc.auto=0",
)
# No configuration, replacement objects, network access or prompts from outside.
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}
_GITLINK = b"160000"
# Unlikely as a user's file name.
_SEED = b".tightloop-seed"
NESTING_LIMIT = 100


@dataclass(frozen=True)
class Repository:
    """A working tree whose git objects are accessed through a separate git folder."""

    root: Path
    """Root of the working tree."""
    git_folder: Path
    """Separate git folder that is used to access the repository."""
    objects: Path
    """Object folder of the repository."""
    ignored: str
    """The user's global ignore file, if configured."""

    def head(self) -> str:
        """Return the tree of HEAD.

        Return "" before the first commit, or if the repository does not use SHA-1.
        """
        # Only reads names, so nothing in the repository's configuration takes effect.
        result = self._git("rev-parse", "--verify", "--quiet", "HEAD", git_dir=self.root / ".git")
        commit = result.stdout.decode("ascii", "replace").strip()
        if result.returncode != 0 or len(commit) != 40:
            return ""
        tree = self._git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
        return tree.stdout.decode("ascii", "replace").strip() if tree.returncode == 0 else ""

    def on_disk(self) -> str:
        """Return the tree of the files on disk. Ignored untracked files are excluded.

        As in episode snapshots, nested repositories and submodules are included as plain files.

        Raises:
            ProofError: git cannot read a file.
        """
        # Without the index of HEAD, `add` would skip tracked files that are also ignored.
        if head := self.head():
            self._must("read-tree", head)
        self._enter_nested_repos()
        self._must("add", "--all", ".")
        return self._must("write-tree").decode("ascii").strip()

    def has(self, tree: str) -> bool:
        """Return whether the repository contains a tree."""
        kind = self._git("cat-file", "-t", tree)
        return kind.returncode == 0 and kind.stdout.strip() == b"tree"

    def trees_before(self, name: str) -> frozenset[str]:
        """Return the trees of all commits in the history of a branch or commit.

        Raises:
            InvalidRequestError: the repository does not contain the branch or commit.
        """
        # Only reads names, as in `head`.
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        commit = self._git(*asked, git_dir=self.root / ".git").stdout.decode("ascii", "replace").strip()
        if not commit:
            raise InvalidRequestError(
                f"--base {name} is not a branch or commit of {self.root}. Fetch the branch or commit"
            )
        lines = self._must("rev-list", "--format=%T", commit).decode("ascii", "replace").splitlines()
        return frozenset(line for line in lines if not line.startswith("commit "))

    def sha256_of(self, tree: str, path: str) -> str:
        """Return the SHA-256 digest of a file in a tree, or "" if the file does not exist."""
        # The path comes from the proof; as an argument, a zero byte would raise ValueError.
        if "\0" in path:
            return ""
        result = self._git("cat-file", "blob", f"{tree}:{path}")
        return hashlib.sha256(result.stdout).hexdigest() if result.returncode == 0 else ""

    def check_out(self, tree: str, folder: Path) -> None:
        """Write the files of a tree into a new folder, byte for byte.

        Raises:
            ProofError: git fails.
        """
        self._must("read-tree", tree)
        self._must("checkout-index", "--all", f"--prefix={folder}/")

    def _enter_nested_repos(self) -> None:
        """Make git include the files of nested repositories.

        This adds an index entry for a missing file below each nested repository. Otherwise, git would record
        only a link to its commit (see treat_directory in git's dir.c).
        """
        for _ in range(NESTING_LIMIT):
            listed = self._must("ls-files", "--stage", "-z").split(b"\0")
            links = [line.partition(b"\t")[2] + b"/" for line in listed if line.startswith(_GITLINK)]
            listed = self._must("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
            nested = links + [path for path in listed if path.endswith(b"/")]
            if not nested:
                return
            # The entry of a link would hide the files below it.
            if links:
                self._must("update-index", "-z", "--force-remove", "--stdin", stdin=_join(path[:-1] for path in links))
            empty = self._must("hash-object", "-w", "--stdin").strip()
            seeds = _join(b"100644 " + empty + b"\t" + path + _SEED for path in nested)
            self._must("update-index", "--add", "--replace", "-z", "--index-info", stdin=seeds)
        raise ProofError(f"{self.root} contains repositories nested more than {NESTING_LIMIT} levels deep")

    def _must(self, *arguments: str, stdin: bytes = b"") -> bytes:
        result = self._git(*arguments, stdin=stdin)
        if result.returncode != 0:
            last_lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
            raise ProofError(f"the files in {self.root} cannot be read: git {arguments[0]}: {last_lines[0]}")
        return result.stdout

    def _git(
        self, *arguments: str, stdin: bytes = b"", git_dir: Path | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        program = find_trusted_program("git")
        if program is None:
            raise ProofError("git is not installed on this host. Install git 2.30 or newer")
        # A git inside this repository could be its author's.
        program.refuse_within((self.root,))
        # Nothing else is inherited: variables such as GIT_EXTERNAL_DIFF or LD_PRELOAD would decide the result.
        environment = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME", "TMPDIR") if name in os.environ}
        environment["PATH"] = trusted_path(self.root)
        git_variables = {"GIT_DIR": str(git_dir or self.git_folder), "GIT_WORK_TREE": str(self.root)}
        # Quoted, because a colon in the path would separate two entries.
        quoted = str(self.objects).replace("\\", "\\\\").replace('"', '\\"')
        git_variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = f'"{quoted}"'
        config = (*_CONFIG, f"core.excludesFile={self.ignored}") if self.ignored else _CONFIG
        settings = [part for setting in config for part in ("-c", setting)]
        try:
            return subprocess.run(
                program.command(*settings, *arguments),
                cwd=self.root,
                env={**environment, **_ENVIRONMENT, **git_variables},
                input=stdin,
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProofError(f"git {arguments[0]} took longer than {GIT_SECONDS:g} s in {self.root}") from None


@contextmanager
def open_repository(root: Path) -> Iterator[Repository]:
    """Yield the repository whose working tree is at `root`.

    Raises:
        InvalidRequestError: `root` is not the root of a git working tree.
    """
    root = root.resolve()
    folder = _git_folder(root)
    if folder is None:
        raise InvalidRequestError(f"{root} is not the root of a git working tree. Specify the root with --repo")
    # A linked worktree has its objects in the folder of the main one.
    pointer = folder / "commondir"
    common = (folder / os.fsdecode(pointer.read_bytes().strip())).resolve() if pointer.is_file() else folder
    ignored = global_setting("core.excludesFile", kind="path")
    with tempfile.TemporaryDirectory(prefix="tightloop-verify-") as temporary:
        git_folder = Path(temporary)
        for name in ("refs", "objects", "info"):
            (git_folder / name).mkdir()
        (git_folder / "HEAD").write_text("ref: refs/heads/none\n")
        (git_folder / "config").write_text("[core]\nrepositoryFormatVersion = 0\n")
        (git_folder / "info" / "attributes").write_text(_ATTRIBUTES)
        # The commits whose parents are missing.
        if (common / "shallow").is_file():
            (git_folder / "shallow").write_bytes((common / "shallow").read_bytes())
        excludes = common / "info" / "exclude"
        (git_folder / "info" / "exclude").write_bytes(excludes.read_bytes() if excludes.is_file() else b"")
        yield Repository(root, git_folder, common / "objects", ignored)


def _git_folder(root: Path) -> Path | None:
    entry = root / ".git"
    if entry.is_dir():
        return entry
    try:
        # Another file type, such as a pipe, could block the reader forever.
        kind, _, target = entry.read_bytes()[:4096].partition(b":") if entry.is_file() else (b"", b"", b"")
    except OSError:
        return None
    folder = (root / os.fsdecode(target.strip())).resolve()
    return folder if kind == b"gitdir" and folder.is_dir() else None


def _join(parts: Iterable[bytes]) -> bytes:
    return b"".join(part + b"\0" for part in parts)


@dataclass(frozen=True)
class Point:
    """A property of a proof that was checked, with the result."""

    holds: bool
    text: str
    """Description as a sentence."""


Reproduce = Callable[[Repository, Statement], Iterable[Point]]
"""Function that reproduces a proof with the files of a repository, and compares the results."""


@dataclass
class Verified:
    """Result of verifying a proof."""

    statement: Statement | None = None
    points: list[Point] = field(default_factory=list)
    envelope: Envelope | None = None
    countersigned_by: str = ""
    """Principal of the key that countersigned the proof."""

    @property
    def proven(self) -> bool:
        """True if there is at least one point and all points passed."""
        return bool(self.points) and all(point.holds for point in self.points)

    def add(self, holds: bool, text: str) -> None:
        """Add a checked property to the result."""
        self.points.append(Point(holds, text))


@dataclass(frozen=True)
class Rules:
    """Requirements that a proof must meet."""

    repository: Path | None = None
    """Root of the working tree that the proof must match; None to check only the proof itself."""
    allowed_signers: Path | None = None
    """Allowed signers file; None to use the user's own files, see `allowed_signers`."""
    unsigned: bool = False
    """Accept a proof without a signature."""
    accepted: bool = False
    """Accept a proof whose findings were accepted by a person."""
    strict: bool = False
    """Reject a proof if a person said only after a change that they had asked for it."""
    scenarios: bool = False
    """Reject a proof unless all hidden scenarios passed. There must be at least one."""
    base: str = ""
    """Branch or commit. Reject a proof unless its initial files match a commit in the history of this branch or commit.
    """
    countersigned: bool = False
    """Reject a proof unless a second party reproduced it and added its signature."""


def verify(content: bytes, rules: Rules, reproduce: Reproduce | None = None) -> Verified:
    """Check a proof's claims. Parts of the proof that cannot be parsed do not prevent the other checks.

    Args:
        content: content of the proof file.
        rules: requirements to check.
        reproduce: function that reproduces the proof from the proven files. It is only called if all
            other checks pass, because the author of the proof chose the commands.

    Raises:
        InvalidRequestError: the repository or the allowed signers file cannot be used.
    """
    verification = Verified()
    repository_context = nullcontext() if rules.repository is None else open_repository(rules.repository)
    # Opened first, so that wrong usage is reported regardless of the proof.
    with allowed_signers(rules.allowed_signers) as allowed, repository_context as repository:
        try:
            verification.envelope = envelope = read_envelope(content)
            verification.statement = read_statement(envelope.content)
            _check_signature(verification, envelope, rules, allowed)
            _check_result(verification, verification.statement, rules)
            _check_scenarios(verification, verification.statement, rules)
            if repository is not None:
                _check_tree(verification, verification.statement, repository)
                if rules.base:
                    _check_base(verification, verification.statement, repository, rules.base)
                if reproduce is not None and verification.proven:
                    verification.points.extend(reproduce(repository, verification.statement))
        except ProofError as error:
            verification.add(False, error.message)
    return verification


def _check_signature(verification: Verified, envelope: Envelope, rules: Rules, allowed: tuple[Path, ...]) -> None:
    is_second = {signature: namespace_of(signature.sig) == COUNTERSIGNATURE for signature in envelope.signatures}
    if not envelope.signatures:
        text = "the proof is not signed, so anyone could have written it"
        verification.add(
            rules.unsigned, text if rules.unsigned else f"{text}. To accept an unsigned proof, add --unsigned"
        )
    elif all(is_second.values()):
        verification.add(False, "the proof's first signature is missing: there is only a countersignature")
    else:
        _check_author(verification, envelope, [each for each in is_second if not is_second[each]], rules, allowed)
    _check_countersignature(verification, envelope, [each for each in is_second if is_second[each]], rules, allowed)


def _check_author(
    verification: Verified,
    envelope: Envelope,
    signatures: Iterable[Signature],
    rules: Rules,
    allowed: tuple[Path, ...],
) -> None:
    problems = []
    for signature in signatures:
        try:
            if trusted_signer := signer(envelope.signed_bytes, signature.sig, allowed):
                verification.add(
                    True, f"signed by {trusted_signer.principal} with the key {trusted_signer.fingerprint}"
                )
                return
            problems.append("the proof is signed with a key that does not belong to an allowed signer")
        except ProofError as error:
            problems.append(error.message)
    hint = "" if rules.allowed_signers else ". Specify the allowed signers with --allowed-signers FILE"
    verification.add(False, f"{problems[0]}{hint}")


def _check_countersignature(
    verification: Verified,
    envelope: Envelope,
    signatures: Iterable[Signature],
    rules: Rules,
    allowed: tuple[Path, ...],
) -> None:
    authors = {
        public_key_of(signature.sig)
        for signature in envelope.signatures
        if namespace_of(signature.sig) != COUNTERSIGNATURE
    }
    problem = "the proof is not countersigned (nobody else has reproduced it)"
    for signature in signatures:
        try:
            second = signer(envelope.signed_bytes, signature.sig, allowed, COUNTERSIGNATURE)
        except ProofError:
            # Not only if a countersignature is required: somebody has tampered with the file.
            verification.add(False, "the countersignature belongs to another proof, or the proof was changed")
            return
        if second is None:
            problem = "the proof is countersigned with a key that is not allowed to countersign (see --allowed-signers)"
        elif public_key_of(signature.sig) in authors:
            problem = "the proof is countersigned with the key that signed it (nobody else has reproduced it)"
        else:
            verification.countersigned_by = second.principal
            verification.add(True, f"countersigned by {second.principal} with the key {second.fingerprint}")
            return
    if rules.countersigned:
        verification.add(False, f"{problem}, but --require countersigned is set")


def _check_result(verification: Verified, statement: Statement, rules: Rules) -> None:
    predicate, details = statement.predicate, statement.predicate.tightloop
    commands = format_count(len(statement.commands), "command")
    for finding in details.findings:
        how = f"accepted by {details.accepted_by or 'nobody'}"
        if finding.announced or finding.asked_by:
            how = "announced beforehand" if finding.announced else f"requested by {finding.asked_by}"
        is_explained = finding.announced or (bool(finding.asked_by) and not rules.strict)
        proven = details.verdict is ProofVerdict.PROVEN and is_explained
        verification.add(proven or (rules.accepted and bool(details.accepted_by)), f"{finding.text} ({how})")
    for sentence in details.asked:
        hint = ", but only after the change was made, which --strict does not accept" if rules.strict else ""
        verification.add(not rules.strict, f"{sentence}{hint}")
    match predicate.result, details.verdict:
        case Result.PASSED | Result.WARNED, ProofVerdict.PROVEN:
            verification.add(True, f"all {commands} in the definition of done passed in a fresh checkout")
        case Result.WARNED, ProofVerdict.NOT_PROVEN:
            reasons = ", ".join(details.doubts) or "the proof gives no reason"
            hint = "" if rules.accepted else ". To accept such a proof, add --accepted"
            verification.add(rules.accepted, f"the definition of done passed, but this proves nothing: {reasons}{hint}")
        case Result.WARNED, ProofVerdict.ACCEPTED:
            who = details.accepted_by or "somebody"
            hint = "" if rules.accepted else ". To accept such a proof, add --accepted"
            verification.add(rules.accepted, f"the result was not proven, but {who} accepted it{hint}")
        case _:
            failed = ", ".join(predicate.failed_tests[:3]) or "the proof lists no failed command"
            verification.add(
                False, f"the proof's own result is that the work is not proven ({predicate.result.value}): {failed}"
            )


def _check_scenarios(verification: Verified, statement: Statement, rules: Rules) -> None:
    scenarios = statement.predicate.tightloop.scenarios
    if scenarios is None or not scenarios.total:
        if rules.scenarios:
            verification.add(False, "the proof has no hidden scenarios, but --require scenarios is set")
        return
    drafted = f" ({scenarios.drafted} drafted)" if scenarios.drafted else ""
    total = format_count(scenarios.total, "hidden scenario") + drafted
    # A finding reports those that failed. It may be allowed, but not if scenarios are required.
    if scenarios.passed == scenarios.total:
        verification.add(True, f"{total} passed in fresh checkouts ({scenarios.digests})")
    elif rules.scenarios:
        verification.add(
            False, f"{scenarios.passed} of {total} passed, but --require scenarios requires all of them to pass"
        )


def _check_base(verification: Verified, statement: Statement, repository: Repository, base: str) -> None:
    tree = statement.predicate.tightloop.base_tree
    holds = tree in repository.trees_before(base)
    text = (
        f"the history of {base} {'contains' if holds else 'does not contain'} a commit with the files that the work "
        f"started from ({tree[:12]})"
    )
    hint = ". Start the run without uncommitted changes, and fetch the whole history"
    verification.add(holds, text if holds else f"{text}{hint}")


def _check_tree(verification: Verified, statement: Statement, repository: Repository) -> None:
    tree = statement.tree
    # The commit first, because hashing all files on disk takes much longer.
    if repository.head() == tree:
        verification.add(
            True, f"the commit checked out in {repository.root} contains exactly the proven files ({tree[:12]})"
        )
    elif repository.on_disk() == tree:
        verification.add(True, f"the files in {repository.root} exactly match the proven files ({tree[:12]})")
    elif repository.has(tree):
        verification.add(
            False,
            f"the files covered by the proof ({tree[:12]}) are in the repository {repository.root}, but they are "
            "not checked out. Check out the commit that contains them",
        )
        return
    else:
        verification.add(
            False, f"the proof covers different files ({tree[:12]}), which are not in the repository {repository.root}"
        )
        return
    for path, digest in statement.configuration_files:
        if repository.sha256_of(tree, path) != digest:
            verification.add(False, f"the digest of {path} in the proof does not match the proven files")


RESULT_SECONDS = 15.0
_NO_PROOF = (
    "{} is a project plan, and each of its runs has its own proof. Specify a run. List runs with: tightloop loop show"
)


async def find_proof(client: Viewer, workflow_id: str, of_run: str = "") -> Proof:
    """Return the proof of an episode, a plan, or one of their earlier runs.

    Raises:
        ProofError: there is no proof. The message contains the reason.
        WorkspaceError: the proof is only available on the workspace's host.
        ServiceUnavailableError: the result did not arrive in time (retryable).
    """
    summary = await client.summary(workflow_id)
    if of_run:
        earlier = await client.earlier_result(workflow_id, of_run)
        if isinstance(earlier, LoopResult):
            raise ProofError(_NO_PROOF.format(workflow_id))
        if earlier.proof is None:
            raise ProofError(f"run {of_run} of {workflow_id} has no proof. Its outcome is {earlier.outcome}")
        return _load_proof(summary.workspace, workflow_id, earlier.proof)
    if summary.status not in CLOSED_STATUSES:
        raise ProofError(f"{workflow_id} is {summary.status}. The proof is created when the run ends")
    try:
        # If Temporal is silent, `result` itself would wait for minutes.
        async with asyncio.timeout(RESULT_SECONDS):
            result = await client.result(workflow_id)
    except TimeoutError:
        raise ServiceUnavailableError(f"timed out waiting for the result of {workflow_id}. Try again") from None
    if isinstance(result, LoopResult) and result.proof is None:
        raise ProofError(_NO_PROOF.format(workflow_id))
    if result.proof is None:
        nothing = result.outcome is PlanOutcome.COMPLETED
        why = "the run had no definition of done" if nothing else "only successful runs are proven"
        raise ProofError(f"{workflow_id} is {summary.status} and has no proof: {why}")
    return _load_proof(summary.workspace, workflow_id, result.proof)


def _load_proof(workspace: str, workflow_id: str, ref: ArtifactRef) -> Proof:
    return Store(Path(workspace), workflow_id).load_model(ref, Proof)
