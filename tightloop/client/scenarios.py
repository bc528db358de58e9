"""Storage of hidden scenarios: an owner's folder, and encrypted bundles in the state home."""

import json
import secrets
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import MAX_WBITS, compress, decompressobj

import yaml
from pydantic import ValidationError

from tightloop.client.keys import present_ring, ring_of
from tightloop.client.sealing import Keys, decrypt_file, encrypt_file
from tightloop.episode.scenarios import CONTENT_CHARACTERS, HiddenScenarios, ScenarioBundle
from tightloop.errors import ArtifactCorruptError, InvalidRequestError
from tightloop.host import private_folder, state_home
from tightloop.host.access import write_over, write_private
from tightloop.value import first_problem
from tightloop.value.documents import load_yaml

if TYPE_CHECKING:
    from tightloop.settings import Settings

FILE = "scenarios.yaml"
FILES = "files"
BUNDLE_BYTES = 2 * CONTENT_CHARACTERS
_HEAD = b"tightloop scenarios 1\0"
_EXAMPLE = """\
# Hidden scenarios: commands that must exit with 0 on the finished work. Only the proof runs them, each in a fresh
# checkout without network. Keep this folder outside the workspace. Files below `files/` are copied into the checkout.
scenarios:
  - name: large amounts
    run: python3 -m unittest -q hidden.test_large
    timeout_s: 60
  - python3 -c "from fees import fee; assert fee(1_000) == 20"
"""
_EXAMPLE_TEST = """\
from unittest import TestCase

from fees import fee


class Large(TestCase):
    def test_large_amount(self):
        self.assertEqual(fee(10**6), 20_000)
"""


def write_template(folder: Path) -> None:
    """Write example scenarios to a new folder. Raises the same errors as `write_scenarios`."""
    _write(folder, _EXAMPLE, {"hidden/test_large.py": _EXAMPLE_TEST.encode()})


def write_scenarios(folder: Path, bundle: ScenarioBundle) -> None:
    """Write scenarios to a new folder in the format of `read_scenarios`.

    Raises:
        InvalidRequestError: the folder exists or cannot be created.
    """
    scenarios = [scenario.model_dump(mode="json", exclude_defaults=True) for scenario in bundle.scenarios]
    text = yaml.safe_dump({"scenarios": scenarios}, sort_keys=False, allow_unicode=True)
    _write(folder, text, bundle.file_contents)


def _write(folder: Path, text: str, files: Mapping[str, bytes]) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
        (folder / FILE).write_text(text, encoding="utf-8")
        (folder / FILES).mkdir()
        write_over(folder / FILES, files)
    except FileExistsError:
        raise InvalidRequestError(f"{folder} already exists. Choose a new folder") from None
    except OSError as error:
        raise InvalidRequestError(f"cannot write {folder}: {error.strerror}") from None


def read_scenarios(path: Path) -> ScenarioBundle:
    """Read scenarios from a folder or a YAML file.

    Raises:
        InvalidRequestError: the file or folder cannot be read or is invalid.
    """
    file = path / FILE if path.is_dir() else path
    try:
        document = load_yaml(file.read_text(encoding="utf-8"))
        files = dict(_read_files(path / FILES)) if path.is_dir() else {}
    except OSError as error:
        hint = "Write an example: tightloop scenarios new FOLDER"
        raise InvalidRequestError(f"cannot read {error.filename or file}: {error.strerror}. {hint}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{file} is neither UTF-8 text nor an encrypted bundle") from None
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, list):
        document = {"scenarios": document}
    if not isinstance(document, dict):
        raise InvalidRequestError(
            f"{file} has no list of scenarios. To create an example, run: tightloop scenarios new FOLDER"
        )
    for name in document.keys() - {"scenarios"}:
        raise InvalidRequestError(f"{file}: unknown field {name!r}. The file may only contain the list `scenarios`")
    try:
        return ScenarioBundle.model_validate({**document, "files": files, "salt": secrets.token_hex(16)})
    except ValidationError as error:
        raise InvalidRequestError(f"{file}: {first_problem(error)}") from None


def _read_files(folder: Path) -> "list[tuple[str, str]]":
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return [(file.relative_to(folder).as_posix(), b64encode(file.read_bytes()).decode()) for file in files]


class ScenarioStore:
    """Encrypted scenario bundles in the state home.

    Sandboxes hide these files from agents, checks and planners.
    """

    def __init__(self, settings: "Settings", home: Path | None = None) -> None:
        self._folder = (home or state_home()) / "scenarios"
        self._visible = (*settings.sandbox.read, *settings.sandbox.write)
        self._keys = Keys(read=lambda: present_ring(settings, home), make=lambda: ring_of(settings, home))

    def commit(self, path: Path, *, workspace: Path | None = None) -> HiddenScenarios:
        """Store scenarios and return their commitment.

        The scenarios are read from a folder, a YAML file or an encrypted bundle.

        Raises:
            InvalidRequestError: the scenarios cannot be read, are invalid, or are in plain text inside the
                workspace.
        """
        bundle = self.read(path, workspace=workspace)
        return self.store(bundle)

    def store(self, bundle: ScenarioBundle) -> HiddenScenarios:
        """Encrypt and store a bundle, and return its commitment."""
        commitment = bundle.commitment
        file = self._file(commitment.digest)
        if not file.exists():
            private_folder(self._folder)
            write_private(file, self.seal(bundle), replace=True)
        return commitment

    def store_answers(self, digest: str, answers: Mapping[int, str]) -> None:
        """Store the last line printed by each failing drafted scenario. Scenarios are numbered from 0."""
        private_folder(self._folder)
        content = encrypt_file(self._keys, _HEAD, "answers", json.dumps(answers).encode())
        write_private(self._folder / f"{digest}.answers", content, replace=True)

    def find_answers(self, digest: str) -> dict[int, str]:
        """Return the lines most recently stored by `store_answers`.

        The result is empty if no drafted scenario has failed in a proof.
        """
        sealed = _read_bundle(self._folder / f"{digest}.answers")
        if sealed is None:
            return {}
        stored = json.loads(decrypt_file(self._keys, _HEAD, "answers", sealed, what="the product's answers"))
        return {int(number): line for number, line in stored.items()}

    def read(self, path: Path, *, workspace: Path | None = None) -> ScenarioBundle:
        """Read scenarios from a folder, a YAML file or an encrypted bundle.

        Raises the same errors as `commit`.
        """
        if path.is_file() and (sealed := _read_bundle(path)) is not None:
            return self._open(sealed, f"the bundle {path}")
        folders = [Path(folder).expanduser() for folder in self._visible] + ([workspace] if workspace else [])
        visible = next((folder for folder in folders if path.resolve().is_relative_to(folder.resolve())), None)
        if visible is not None:
            raise InvalidRequestError(
                f"the scenarios {path} are inside {visible}, where agents can read them. Move them to another folder, "
                f"or encrypt them: tightloop scenarios pack {path} --output FILE"
            )
        return read_scenarios(path)

    def seal(self, bundle: ScenarioBundle) -> bytes:
        """Encrypt a bundle and return the content of its file."""
        return encrypt_file(self._keys, _HEAD, "bundle", compress(bundle.content))

    def load(self, commitment: HiddenScenarios) -> ScenarioBundle:
        """Load the scenarios that match a commitment.

        Raises:
            InvalidRequestError: this host does not have the scenarios.
            ArtifactCorruptError: the stored scenarios do not match the commitment.
        """
        what = f"the hidden scenarios {commitment.digest[:12]}"
        sealed = _read_bundle(self._file(commitment.digest))
        if sealed is None:
            raise InvalidRequestError(
                f"{what} are not on this host. Copy the scenario folder or the encrypted bundle to this host, and then "
                "store it with: tightloop scenarios pack PATH"
            )
        bundle = self._open(sealed, what)
        if bundle.commitment.evolve(changes=commitment.changes, withdrawn=commitment.withdrawn) != commitment:
            raise ArtifactCorruptError(f"{what} on this host do not match the digest in the request")
        return bundle

    def find(self, digest: str) -> ScenarioBundle | None:
        """Return the scenarios with this digest, or None if this host no longer has them."""
        sealed = _read_bundle(self._file(digest))
        return None if sealed is None else self._open(sealed, f"the hidden scenarios {digest[:12]}")

    def _file(self, digest: str) -> Path:
        return self._folder / f"{digest}.bundle"

    def _open(self, sealed: bytes, what: str) -> ScenarioBundle:
        content = decrypt_file(self._keys, _HEAD, "bundle", sealed, what=what)
        # Bounded, because authentic content may be too large by mistake.
        return ScenarioBundle.model_validate_json(decompressobj(MAX_WBITS).decompress(content, BUNDLE_BYTES))


def _read_bundle(file: Path) -> bytes | None:
    """Return the content of an encrypted bundle, or None if the file does not exist or is not a bundle."""
    try:
        with file.open("rb") as stream:
            content = stream.read(BUNDLE_BYTES)
    except OSError:
        return None
    return content if content.startswith(_HEAD) else None
