"""DSSE envelope and SSH signatures of a proof."""

import base64
import binascii
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import Field, ValidationError

from tightloop.errors import InvalidRequestError, ProofError
from tightloop.host.programs import TrustedProgram, find_trusted_program, own_environment, trusted_path
from tightloop.value import Value, first_problem

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_BYTES = 4 << 20
"""Maximum size of an envelope and its payload. In the worst case, Python needs about 40 times as much memory."""
# Each signature is checked by several processes of ssh-keygen.
MOST_SIGNATURES = 16
SIGNATURE_CHARACTERS = 16_384
# Parsing a number takes quadratic time, and no number in a proof comes near this length.
INTEGER_DIGITS = 30


class Signature(Value):
    """Signature of an envelope."""

    sig: str = Field(max_length=SIGNATURE_CHARACTERS)
    """SSH signature, base64."""
    keyid: str = ""
    """Unauthenticated hint: fingerprint of the key, `SHA256:...`."""


class Envelope(Value):
    """A payload with its type and signatures. The signatures cover the payload and the type."""

    payload: str
    """Content, base64."""
    payload_type: str = Field(alias="payloadType")
    signatures: tuple[Signature, ...] = Field(default=(), max_length=MOST_SIGNATURES)

    @property
    def content(self) -> bytes:
        """Decoded payload.

        Raises:
            ProofError: the payload is not base64 or not in canonical form.
        """
        return decode(self.payload, "the payload of the proof")

    @property
    def signed_bytes(self) -> bytes:
        """The pre-authentication encoding, which is the data to sign. Raises the same errors as `content`."""
        return signed_bytes(self.payload_type, self.content)


def seal(content: bytes, signatures: Iterable[Signature] = ()) -> Envelope:
    """Wrap a statement in an envelope with its signatures."""
    return Envelope(payload=encode(content), payloadType=PAYLOAD_TYPE, signatures=tuple(signatures))


def to_json(envelope: Envelope) -> str:
    """Serialize an envelope as the content of a proof file."""
    return json.dumps(envelope.model_dump(mode="json", by_alias=True), indent=1) + "\n"


def signed_bytes(payload_type: str, content: bytes) -> bytes:
    """Return the pre-authentication encoding, which clearly separates the type from the content."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(content), content)


def read_envelope(content: bytes) -> Envelope:
    """Parse the content of a proof file into an envelope.

    Raises:
        ProofError: the content is too large, not JSON, or not an envelope with an in-toto statement.
    """
    document = read_json(content, "the proof")
    try:
        envelope = Envelope.model_validate(document)
    except ValidationError as error:
        raise ProofError(f"the proof is not a valid DSSE envelope: {first_problem(error)}") from None
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ProofError(
            f"the proof contains {envelope.payload_type[:80]!r}, not an in-toto statement ({PAYLOAD_TYPE})"
        )
    return envelope


def read_json(content: bytes, what: str) -> Any:
    """Parse untrusted JSON and reject ambiguous documents.

    Raises:
        ProofError: the content is too large, is not valid UTF-8 or JSON, or contains duplicate names.
            Numbers that are too long or not finite are also rejected.
    """
    if len(content) > MOST_BYTES:
        raise ProofError(f"{what} is larger than {MOST_BYTES >> 20} MiB and was not read")
    try:
        document = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_twins,
            parse_constant=_refuse_number,
            parse_int=_bounded_integer,
        )
        # JSON can contain lone surrogates, which no output can encode.
        json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError:
        raise ProofError(f"{what} contains an incomplete character (a lone surrogate)") from None
    except UnicodeDecodeError as error:
        raise ProofError(f"{what} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ProofError(
            f"{what} is not valid JSON: {error.msg} on line {error.lineno}. Is the file complete?"
        ) from None
    except RecursionError:
        raise ProofError(f"{what} is nested too deeply") from None


def encode(content: bytes) -> str:
    """Encode bytes as canonical base64."""
    return base64.b64encode(content).decode()


def decode(text: str, what: str) -> bytes:
    """Decode canonical base64.

    Other forms are rejected, because different strings could then decode to the same bytes.

    Raises:
        ProofError: the string is not canonical base64.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content or encode(content) != text:
        raise ProofError(f"{what} is not valid base64. Is the file complete?")
    return content


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        [(twin, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ProofError(
            f"the proof contains the field {twin[:80]!r} twice, so different readers could interpret it differently"
        )
    return fields


def _refuse_number(number: str) -> NoReturn:
    # Python parses NaN and Infinity, which other JSON parsers reject.
    raise ProofError(f"the proof contains the number {number}, which is not valid in JSON")


def _bounded_integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise ProofError(f"the proof contains a number with {len(digits)} digits, but the limit is {INTEGER_DIGITS}")
    return int(digits)


NAMESPACE = "tightloop-proof"
"""SSH signature namespace. It prevents signatures for other purposes, such as commits, from being accepted for a proof,
and vice versa.
"""
COUNTERSIGNATURE = "tightloop-countersignature"
"""SSH signature namespace of the party that reproduced a proof.

An author's key cannot be used for it if the key's line in the allowed signers file names the other namespace, and vice
versa.
"""
SIGN_SECONDS = 120.0
"""Time limit for signing. A person may have to enter a passphrase or touch a security key."""
CHECK_SECONDS = 20.0
MOST_PRINCIPALS = 16
_MAGIC = b"SSHSIG"
_LITERAL = re.compile(r"(?:key::)?((?:ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/=]+)")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_PUBLIC_KEY = re.compile(r"(?:ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/=]+")
# The current repository may be untrusted, so git and ssh-keygen never start in it.
_NOWHERE = "/"


class NoSigningKeyError(ProofError):
    """The user has not configured an SSH key for git signatures."""


@dataclass(frozen=True)
class SigningKey:
    """The signing key from the user's git configuration."""

    file: Path | None
    """Private key file, or public key file if the key is in an agent; None if the configuration contains the key
    itself.
    """
    literal: str = ""
    program: str = "ssh-keygen"
    """Signing program configured in git, such as a password manager's."""

    @property
    def public(self) -> str:
        """Type and base64 text of the public key, or "" if its file is missing."""
        if self.file is None:
            return self.literal
        for path in (self.file, self.file.with_name(f"{self.file.name}.pub")):
            try:
                if match := _PUBLIC_KEY.match(path.read_text(encoding="utf-8", errors="replace")):
                    return match.group()
            except OSError:
                continue
        return ""


@dataclass(frozen=True)
class Signer:
    """The key that made a signature, with the name of its owner."""

    fingerprint: str
    principal: str
    """Name of the key in the allowed signers file."""


def signing_key() -> SigningKey:
    """Return the key from `user.signingkey` in the user's global git configuration.

    The configuration of the repository is never used.

    Raises:
        NoSigningKeyError: no key is configured. The message contains the command to configure one.
    """
    configured = global_setting("gpg.format")
    named = global_setting("user.signingkey")
    if configured != "ssh" or not named:
        raise NoSigningKeyError(
            "your git configuration has no SSH signing key. Set one: git config --global gpg.format ssh && "
            "git config --global user.signingkey ~/.ssh/id_ed25519.pub"
        )
    program = global_setting("gpg.ssh.program", kind="path") or "ssh-keygen"
    if literal := _LITERAL.match(named):
        return SigningKey(None, literal.group(1), program)
    # Asked again as a path, because only this form expands `~`.
    file = Path(global_setting("user.signingkey", kind="path"))
    if not file.is_file():
        raise NoSigningKeyError(f"user.signingkey in your git configuration is set to {named!r}, which does not exist")
    return SigningKey(file, program=program)


def sign(content: bytes, key: SigningKey, namespace: str = NAMESPACE) -> Signature:
    """Sign bytes. This may ask for a passphrase on the terminal or wait for a touch.

    Raises:
        ProofError: the signing program is missing or fails.
    """
    with _files(content=content, key=key.literal.encode() + b"\n") as folder:
        # -U: the private key of a literal public key is in an agent.
        key_arguments = [str(key.file)] if key.file is not None else [str(folder / "key"), "-U"]
        _sign(key.program, ("-Y", "sign", "-n", namespace, "-f", *key_arguments, str(folder / "content")))
        try:
            signature = _from_armour((folder / "content.sig").read_text())
        except (OSError, UnicodeDecodeError):
            raise ProofError(f"{key.program} reported success but wrote no signature") from None
    return Signature(sig=signature, keyid=fingerprint(content, signature, namespace))


def namespace_of(sig: str) -> str:
    """Return the namespace in a signature, or "" if it is not an SSH signature.

    The signature is not verified.
    """
    return _fields_of(sig)[1].decode("utf-8", "replace")


def public_key_of(sig: str) -> bytes:
    """Return the public key in a signature, or b"" if it is not an SSH signature.

    The signature is not verified.
    """
    return _fields_of(sig)[0]


def _fields_of(sig: str) -> tuple[bytes, bytes]:
    try:
        blob = base64.b64decode(sig, validate=True)
    except (binascii.Error, ValueError):
        return b"", b""
    # PROTOCOL.sshsig: magic, version, public key, namespace. Strings begin with their length.
    position, fields = len(_MAGIC) + 4, []
    for _ in range(2):
        end = position + 4 + int.from_bytes(blob[position : position + 4])
        fields.append(blob[position + 4 : end])
        position = end
    return fields[0], fields[1]


def fingerprint(content: bytes, sig: str, namespace: str = NAMESPACE) -> str:
    """Return the fingerprint of the key that signed these bytes. The owner of the key is not checked.

    Raises:
        ProofError: the signature does not match these bytes and this namespace.
    """
    with _files(sig=_to_armour(sig)) as folder:
        result = _check(("-Y", "check-novalidate", "-n", namespace, "-s", str(folder / "sig")), content)
    match = _FINGERPRINT.search(result.stdout.decode("utf-8", "replace"))
    if result.returncode != 0 or match is None:
        raise ProofError("the signature does not match: the proof was changed, or it was signed for another purpose")
    return match.group()


def signer(content: bytes, sig: str, allowed: Sequence[Path], namespace: str = NAMESPACE) -> Signer | None:
    """Return the key and the principal of a signature.

    Return None if no allowed signers file contains the key. See ssh-keygen(1).

    Raises:
        ProofError: the signature does not match these bytes and this namespace.
    """
    # First, because `find-principals` compares keys and does not verify the signature.
    made_by = fingerprint(content, sig, namespace)
    with _files(sig=_to_armour(sig)) as folder:
        signature = str(folder / "sig")
        for file in allowed:
            result = _check(("-Y", "find-principals", "-s", signature, "-f", str(file)), b"")
            names = result.stdout.decode("utf-8", "replace").splitlines() if result.returncode == 0 else []
            # Bounded, because each check starts a process.
            for name in names[:MOST_PRINCIPALS]:
                arguments = ["-n", namespace, "-s", signature, "-f", str(file), "-I", name]
                if _check(("-Y", "verify", *arguments), content).returncode == 0:
                    return Signer(made_by, name)
    return None


@contextmanager
def allowed_signers(file: Path | None) -> Iterator[tuple[Path, ...]]:
    """Yield the allowed signers files.

    If no file is given, these are the user's own files: `gpg.ssh.allowedSignersFile` from the git
    configuration, and the user's signing key.

    Raises:
        InvalidRequestError: the given file cannot be read.
    """
    if file is not None:
        if not os.access(file, os.R_OK) or not file.is_file():
            raise InvalidRequestError(
                f"--allowed-signers {file} cannot be read. For the file format, see ssh-keygen(1)"
            )
        # Absolute, because the programs start in another folder.
        yield (file.resolve(),)
        return
    named = global_setting("gpg.ssh.allowedSignersFile", kind="path")
    configured_files = (Path(named),) if named and Path(named).is_file() else ()
    try:
        public_key = signing_key().public
    except ProofError:
        public_key = ""
    line = f'your-own-key namespaces="{NAMESPACE}" {public_key}\n' if public_key else ""
    with _files(own=line.encode()) as folder:
        yield (*configured_files, folder / "own")


def global_setting(name: str, *, kind: str = "") -> str:
    """Return a setting from the user's global git configuration, or "" if it is not set.

    Args:
        name: name of the setting, such as `gpg.format`.
        kind: type, as in git-config(1). The type `path` expands `~`.
    """
    typed = [f"--type={kind}"] if kind else []
    program = find_trusted_program("git")
    if program is None:
        return ""
    program.refuse_within()
    try:
        result = subprocess.run(
            program.command("config", "--global", "--includes", *typed, "--get", name),
            cwd=_NOWHERE,
            # Variables such as GIT_DIR would redirect git; GIT_CONFIG_GLOBAL names the file that is wanted here.
            env={key: value for key, value in _environment().items() if not key.startswith("GIT_") or key == _GLOBAL},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(result.stdout).rstrip("\n") if result.returncode == 0 else ""


_GLOBAL = "GIT_CONFIG_GLOBAL"


def _sign(name: str, arguments: Sequence[str]) -> None:
    program = _program(name, "Install OpenSSH 8.2 or newer")
    try:
        result = subprocess.run(
            program.command(*arguments),
            cwd=_NOWHERE,
            env=_environment(),
            # Passphrases are read from the terminal itself, not from stdin.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SIGN_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ProofError(f"{name} cannot be started: {error.strerror}. Install OpenSSH 8.2 or newer") from None
    except subprocess.TimeoutExpired:
        raise ProofError(
            f"{name} did not sign within {SIGN_SECONDS:g} s. Is an agent waiting for your input?"
        ) from None
    if result.returncode != 0:
        last_lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ProofError(f"{name} could not sign: {last_lines[0] if last_lines else 'no reason given'}")


def _check(arguments: Sequence[str], stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
    """Run ssh-keygen to verify a signature. This also works for signatures by other signing programs."""
    program = _program("ssh-keygen", "Install OpenSSH 8.9 or newer")
    try:
        return subprocess.run(
            program.command(*arguments),
            cwd=_NOWHERE,
            env=_environment(),
            input=stdin,
            capture_output=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ProofError(f"ssh-keygen cannot be started: {error.strerror}. Install OpenSSH 8.9 or newer") from None
    except subprocess.TimeoutExpired:
        raise ProofError(f"ssh-keygen did not respond within {CHECK_SECONDS:g} s") from None


def _program(name: str, how_to_get: str) -> TrustedProgram:
    program = find_trusted_program(name)
    if program is None:
        raise ProofError(f"{name} was not found. {how_to_get}")
    program.refuse_within()
    return program


def _environment() -> dict[str, str]:
    return {**own_environment(), "PATH": trusted_path()}


@contextmanager
def _files(**contents: bytes) -> Iterator[Path]:
    """Write files to a private temporary folder, which is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="tightloop-proof-") as folder:
        for name, content in contents.items():
            # ssh-keygen rejects a key file that others can read.
            with os.fdopen(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        yield Path(folder)


def _to_armour(sig: str) -> bytes:
    blob = decode(sig, "the signature of the proof")
    if not blob.startswith(_MAGIC):
        raise ProofError("the signature of the proof is not an OpenSSH signature, so it cannot be checked")
    lines = [sig[at : at + 70] for at in range(0, len(sig), 70)]
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]).encode()


def _from_armour(text: str) -> str:
    body = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("-----")]
    return encode(decode("".join(body), "the ssh-keygen signature"))
