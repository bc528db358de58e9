"""Hostile repositories, and what the worker does with a workspace, from opening it to closing it.

`python -m tests.support.hostile_repositories FOLDER` makes all of them below FOLDER, goes through them, and prints a
line of JSON for each. Programs that they name write into `FOLDER/watch`, where nothing may ever be written.
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from activities.workspace.differ import Differ
from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.git_command import user_git
from activities.workspace.user_repository import UserRepository
from activities.workspace.working_tree import Workspaces
from activities.workspace.worktree import remove_worktree
from tests.support.git_sample import git, make_repository, scope_of, write
from tightloop.errors import TightloopError

PATIENCE = timedelta(seconds=5)
"""With a command of git: one that reads a pipe in the place of a file waits for ever."""

Make = Callable[[Path, Path], None]
"""Makes a plain repository hostile: its root, and the folder that is watched."""


def canary(watch: Path) -> str:
    return f"sh -c 'echo ran >> {watch}/ran' #"


def config(*pairs: tuple[str, str], attributes: str = "", files: dict[str, str] | None = None) -> Make:
    """Set settings of the repository; CANARY and WATCH stand for a command and the watched folder."""

    def make(root: Path, watch: Path) -> None:
        for name, value in pairs:
            git(root, "config", "--add", name, value.replace("CANARY", canary(watch)).replace("WATCH", str(watch)))
        if attributes:
            write(root, {".gitattributes": attributes, ".git/info/attributes": attributes})
        filled = {name: text.replace("CANARY", canary(watch)) for name, text in (files or {}).items()}
        write(root, filled)

    return make


def raw_config(text: str) -> Make:
    """Append to the settings, whatever git thinks of it."""

    def make(root: Path, watch: Path) -> None:
        with (root / ".git/config").open("a") as file:
            file.write(text.replace("CANARY", canary(watch)).replace("WATCH", str(watch)))

    return make


def promisor(url: str, *pairs: tuple[str, str], missing: str = "HEAD:a.txt") -> Make:
    """Miss an object, and name a program that would fetch it."""

    def make(root: Path, watch: Path) -> None:
        settings = (
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", url),
            ("remote.origin.promisor", "true"),
            ("protocol.allow", "always"),
            *pairs,
        )
        name = git(root, "rev-parse", missing).decode().strip()
        config(*settings)(root, watch)
        place = root / ".git/objects" / name[:2] / name[2:]
        place.chmod(0o644)
        place.write_bytes(b"")

    return make


def hooks(root: Path, watch: Path) -> None:
    names = "post-checkout pre-commit post-commit commit-msg prepare-commit-msg reference-transaction post-index-change"
    for name in (*names.split(), "fsmonitor-watchman", "pre-auto-gc"):
        hook = root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{canary(watch)}\n")
        hook.chmod(0o755)


def tracked_hooks(root: Path, watch: Path) -> None:
    hooks(root, watch)
    shutil.copytree(root / ".git/hooks", root / "hooks")
    git(root, "config", "core.hooksPath", "hooks")


def moved(place: str, text: str = "", *, inside: bool = False) -> Make:
    """Move a part of the git folder into the watched folder, or into the tree, and point at it."""

    def make(root: Path, watch: Path) -> None:
        target = root / "moved" if inside else watch / f"moved-{root.name}"
        (root / place).rename(target)
        if text:
            (root / place).write_text(f"{text}{target}\n")
        else:
            (root / place).symlink_to(target)

    return make


def other_repository(root: Path, watch: Path) -> None:
    other = make_repository(watch / f"other-{root.name}", {"theirs": "theirs\n"})
    shutil.rmtree(root / ".git")
    (root / ".git").write_text(f"gitdir: {other}/.git\n")


def common_folder(*, inside: bool) -> Make:
    def make(root: Path, watch: Path) -> None:
        place = root / "common" if inside else watch / f"common-{root.name}"
        shutil.copytree(root / ".git", place)
        (root / ".git/commondir").write_text(f"{place}\n")

    return make


def into(name: str, content: bytes) -> Make:
    def make(root: Path, _watch: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return make


def pipe(name: str) -> Make:
    def make(root: Path, _watch: Path) -> None:
        (root / name).unlink(missing_ok=True)
        os.mkfifo(root / name)

    return make


def link(name: str, target: str) -> Make:
    def make(root: Path, watch: Path) -> None:
        place = root / name
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target.replace("WATCH", str(watch)))

    return make


def names(*found: bytes) -> Make:
    def make(root: Path, _watch: Path) -> None:
        for name in found:
            path = root / os.fsdecode(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"odd\n")

    return make


def deep(root: Path, _watch: Path) -> None:
    here = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(600):
            Path("deeper").mkdir()
            os.chdir("deeper")
    finally:
        os.chdir(here)


def nested(setting: str) -> Make:
    def make(root: Path, watch: Path) -> None:
        inner = make_repository(root / "inner", {"x": "x\n"})
        config((setting, "CANARY"))(inner, watch)
        hooks(inner, watch)

    return make


def submodule(root: Path, watch: Path) -> None:
    inner = make_repository(root / "part", {"x": "x\n"})
    git(root, "add", "part")
    git(root, "commit", "-q", "-m", "part")
    write(root, {".gitmodules": '[submodule "part"]\n\tpath = part\n\turl = ext::CANARY\n\tupdate = !CANARY\n'})
    config(("core.fsmonitor", "CANARY"), ("diff.external", "CANARY"))(inner, watch)


def worktree_of_that_name(root: Path, watch: Path) -> None:
    place = root / f".git/worktrees/{root.name}-tree"
    place.mkdir(parents=True)
    (place / "gitdir").write_text(f"{watch}/.git\n")
    (place / "commondir").write_text(f"{watch}\n")
    (place / "config.worktree").write_text(f'[core]\n\tfsmonitor = "{canary(watch)}"\n')


def unix_socket(root: Path, _watch: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(root)
        made.bind("door")


def swapped(name: str, target: str) -> Make:
    """Put a link in the place of a file or folder between the snapshot and the restore."""

    def make(root: Path, _watch: Path) -> None:
        (root / "swap.json").write_text(json.dumps([name, target]))

    return make


ALL_PATHS = "* filter=x diff=x merge=x text=auto working-tree-encoding=UTF-16 ident\n"
KINDS: dict[str, Make] = {
    "promisor-ext": promisor("ext::touch WATCH/ran", ("protocol.ext.allow", "always")),
    "promisor-ext-tree": promisor("ext::touch WATCH/ran", ("protocol.ext.allow", "always"), missing="HEAD^{tree}"),
    "promisor-ssh": promisor("ssh://host/x", ("core.sshCommand", "CANARY")),
    "promisor-upload-pack": promisor("/", ("remote.origin.uploadpack", "CANARY")),
    "promisor-git-proxy": promisor("git://host/x", ("core.gitProxy", "CANARY")),
    "promisor-http": promisor("http://127.0.0.1:9/x", ("credential.helper", "!CANARY"), ("core.askPass", "CANARY")),
    "promisor-helper": promisor("x::y", ("remote.origin.vcs", "ext")),
    "filter-clean": config(("filter.x.clean", "CANARY"), attributes=ALL_PATHS),
    "filter-smudge": config(("filter.x.smudge", "CANARY"), attributes=ALL_PATHS),
    "filter-process": config(("filter.x.process", "CANARY"), ("filter.x.required", "true"), attributes=ALL_PATHS),
    "diff-external": config(("diff.external", "CANARY")),
    "diff-driver": config(("diff.x.command", "CANARY"), attributes=ALL_PATHS),
    "diff-textconv": config(("diff.x.textconv", "CANARY"), attributes=ALL_PATHS),
    "merge-driver": config(("merge.x.driver", "CANARY"), attributes=ALL_PATHS),
    "fsmonitor": config(("core.fsmonitor", "CANARY")),
    "hooks": hooks,
    "hooks-tracked": tracked_hooks,
    "include": config(("include.path", "../evil"), files={"evil": "[core]\n\tfsmonitor = CANARY\n"}),
    "include-if": config(("includeIf.gitdir:**.path", "../evil"), files={"evil": "[core]\n\tfsmonitor = CANARY\n"}),
    "include-device": config(("include.path", "/dev/zero")),
    "include-itself": config(("include.path", "config")),
    "worktree-config": config(
        ("extensions.worktreeConfig", "true"), files={".git/config.worktree": "[core]\n\tfsmonitor = CANARY\n"}
    ),
    "pager-editor": config(("core.pager", "CANARY"), ("core.editor", "CANARY"), ("sequence.editor", "CANARY")),
    "gpg": config(("gpg.program", "CANARY"), ("commit.gpgSign", "true"), ("gpg.ssh.program", "CANARY")),
    "alias": config(("alias.status", "!CANARY"), ("alias.commit", "!CANARY"), ("alias.switch", "!CANARY")),
    "trailer": config(("trailer.x.command", "CANARY"), ("trailer.x.cmd", "CANARY")),
    "alternate-refs": config(("core.alternateRefsCommand", "CANARY")),
    "core-worktree": config(("core.worktree", "WATCH")),
    "excludes-elsewhere": config(("core.excludesFile", "/dev/zero")),
    "identity": config(("user.name", "x\\ny"), ("user.email", "$(CANARY)")),
    "object-format-lines": raw_config('[extensions]\n\tobjectformat = "sha1\\n[core]\\nfsmonitor = CANARY"\n'),
    "object-format-lines-included": config(
        ("include.path", "more"),
        files={".git/more": '[extensions]\n\tobjectformat = "sha1\\n[core]\\n\\tfsmonitor = CANARY"\n'},
    ),
    "object-format-unknown": raw_config("[extensions]\n\tobjectformat = md5\n\trefstorage = CANARY\n"),
    "version-unknown": raw_config("[core]\n\trepositoryformatversion = 99\n"),
    "config-broken": raw_config("[core\n\tfsmonitor = CANARY\n"),
    "config-pipe": pipe(".git/config"),
    "alternates-elsewhere": into(".git/objects/info/alternates", b"/etc\n/dev/zero\n../../..\n"),
    "git-file-into-the-tree": moved(".git", "gitdir: ", inside=True),
    "git-file-elsewhere": moved(".git", "gitdir: "),
    "git-link-elsewhere": moved(".git"),
    "git-file-of-another": other_repository,
    "common-into-the-tree": common_folder(inside=True),
    "common-elsewhere": common_folder(inside=False),
    "refs-link": moved(".git/refs"),
    "objects-link": moved(".git/objects"),
    "logs-link": moved(".git/logs"),
    "branch-link": link(".git/refs/heads/made", "WATCH/made"),
    "worktrees-link": link(".git/worktrees", "WATCH"),
    "index-link": link(".git/index", "WATCH/keep"),
    "head-link": link(".git/HEAD", "WATCH/keep"),
    "exclude-link": link(".git/info/exclude", "/dev/zero"),
    "ignore-link": link(".gitignore", "WATCH/keep"),
    "attributes-link": link(".gitattributes", "/dev/zero"),
    "ignore-pipe": pipe(".gitignore"),
    "ignore-slow": into(".gitignore", b"\n".join([b"*a" * 60, b"**/*a/" * 40 + b"b"])),
    "ignore-large": into(".gitignore", b"x\n" * 1_000_000),
    "index-torn": into(".git/index", b"DIRC\0\0\0\2\xff\xff\xff\xff" + b"x" * 200),
    "index-pipe": pipe(".git/index"),
    "links-in-a-circle": link("a", "a"),
    "link-of-state": link(".tightloop", "x"),
    "state-folder": into(".tightloop/git/commondir", b"../../common\n"),
    "state-locks": into(".tightloop/locks/x.processes.json", b'[{"pid": 1, "started": NaN, "leads_session": true}]'),
    "names": names(b"n\xff", b"new\nline", b"-rf", b":(glob)*", b'quo"te', b"back\\slash", b"a b", b"\x1b[31m"),
    "names-of-git": names(b".GIT/config", b"git~1", b".git /x", b"x/.Git/config", b".gitmodules", b"CON", b"a:b"),
    "depth": deep,
    "socket": unix_socket,
    "nested-fsmonitor": nested("core.fsmonitor"),
    "nested-textconv": nested("diff.x.textconv"),
    "nested-file": into("inner/.git", b"gitdir: /etc\n"),
    "submodule": submodule,
    "worktree-of-that-name": worktree_of_that_name,
    "swap-file": swapped("a.txt", "WATCH/keep"),
    "swap-folder": swapped("src", "WATCH"),
    "swap-chain": swapped("src", "../../../../../../../../../../../../..WATCH"),
}


def make(kind: str, folder: Path) -> Path:
    """Make the repository of a kind below `folder`, beside `folder/watch`."""
    root = make_repository(folder / kind, {"a.txt": "one\n", "src/b.py": "x = 1\n", "src/keep": "mine\n"})
    watch = folder / "watch"
    watch.mkdir(exist_ok=True)
    (watch / "keep").write_text("theirs\n")
    KINDS[kind](root, watch)
    return root


def go_through(root: Path, watch: Path) -> list[str]:
    """Do with a workspace what an episode does, and a plan; return the errors, each of which is ours."""
    errors = []

    def tried(what: Callable[[], object]) -> None:
        try:
            what()
        except TightloopError as error:
            errors.append(f"{type(error).__name__}: {error.message}")

    tried(lambda: _episode(root, watch))
    tried(lambda: _commit(root))
    tried(lambda: _worktree(root))
    return errors


def _episode(root: Path, watch: Path) -> None:
    scope, workspaces = scope_of(root, f"{root.name}-here"), Workspaces(timeout=PATIENCE)
    workspaces.prepare(scope, take_over=lambda _: True)
    with workspaces.hold(scope) as tree:
        start = tree.snapshot()
        tree.keep("0", start)
        (root / "made.txt").write_text("made\n")
        (root / "src/b.py").write_text("x = 2\n")
        if (root / "swap.json").exists():
            name, target = json.loads((root / "swap.json").read_text())
            link(name, target)(root, watch)
        end = tree.snapshot()
        Differ().compare(store_folder_of(scope), start, end)
        Differ().lines(store_folder_of(scope), end)
        tree.restore(start)
        assert tree.ensure(start) is None
        assert (root / "src/b.py").read_bytes() == b"x = 1\n"
        assert not (root / "made.txt").exists()
    workspaces.release(scope)


def _commit(root: Path) -> None:
    with user_git(UserRepository(root), timeout=PATIENCE) as found:
        found.run("switch", "-q", "-c", "made")
        found.run("add", "-A")
        found.run("commit", "-q", "--no-verify", "--no-gpg-sign", "--allow-empty", "-m", "made")


def _worktree(root: Path) -> None:
    scope, workspaces = scope_of(root, f"{root.name}-tree", worktree=True), Workspaces(timeout=PATIENCE)
    workspaces.prepare(scope, take_over=lambda _: True)
    with workspaces.hold(scope) as tree:
        start = tree.snapshot()
        (root_of(scope) / "made.txt").write_text("made\n")
        tree.restore(start)
    workspaces.release(scope)
    remove_worktree(UserRepository(root), root_of(scope))


def main(folder: Path) -> None:
    for kind in KINDS:
        root = folder / kind
        print(json.dumps({"kind": kind, "errors": go_through(root, folder / "watch")}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
