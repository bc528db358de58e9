"""Nothing in the product starts a program by its bare name; and planted code that does is found."""

import pytest

from tests.support.program_lint import findings, findings_in


def test_the_product_starts_only_resolved_programs() -> None:
    assert findings() == []


BARE = {
    "run": "import subprocess\nsubprocess.run(('git', 'status'))",
    "list": "import subprocess\nsubprocess.run(['git'], check=True)",
    "variable": "import subprocess\ncommand = ['git']\nsubprocess.Popen(command)",
    "argument": "import subprocess\ndef start(command):\n    subprocess.Popen(command)",
    "changed": "import subprocess\nx = git.command('a')\nx = ['git', *x]\nsubprocess.run(x)",
    "found at the start": "import shutil, subprocess\nsubprocess.run((shutil.which('git'), 'status'))",
    "alias": "import subprocess as sp\nsp.check_output(['git'])",
    "from": "from subprocess import run as start\nstart(['git'])",
    "shell": "import subprocess\nsubprocess.run(git.command('status'), shell=True)",
    "asyncio": "import asyncio\nasync def a():\n    await asyncio.create_subprocess_exec('temporal', 'server')",
    "asyncio shell": "import asyncio\nasync def a():\n    await asyncio.create_subprocess_shell('temporal server')",
    "loop": "async def a(loop):\n    await loop.subprocess_exec(object, 'temporal')",
    "handed on": "import asyncio, subprocess\nasync def a():\n    await asyncio.to_thread(subprocess.run, ['git'])",
    "exec": "import os\nos.execvp('git', ['git'])",
    "execve": "import os\nos.execve('git', ['git'], {})",
    "spawn": "import os\nos.posix_spawnp('git', ['git'], {})",
    "system": "import os\nos.system('git status')",
    "popen": "from os import popen\npopen('ps')",
    "browser": "import webbrowser\nwebbrowser.open('http://x')",
    "browser from": "from webbrowser import open as show\nshow('http://x')",
    "request": "ProcessRequest(program='git', cwd=x)",
    "made up": "TrustedProgram('git', Path(shutil.which('git')))",
    "of a workspace": "TrustedProgram('git', Path('/home/me/bin/git'))",
    "of a project": "ProcessRequest(program=ProjectProgram('git'), cwd=x)",
}


@pytest.mark.parametrize("source", BARE.values(), ids=BARE)
def test_a_bare_name_is_found(source: str) -> None:
    found = list(findings_in(source, "activities/planted.py"))
    assert len(found) == 1, found
    assert found[0].startswith("activities/planted.py:")


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(find_trusted('git').command('status'), check=False)",
        "import subprocess\ncommand, env = git.command('status'), {}\nsubprocess.run(command, env=env)",
        "import asyncio\nasync def a():\n    await asyncio.create_subprocess_exec(*temporal.command('server'))",
        "import os\nos.execve(own_python().path, command, {})",
        "import subprocess\ndef a() -> subprocess.Popen[bytes]:\n    return kept",
        "TrustedProgram('sandbox-exec', Path('/usr/bin/sandbox-exec'))",
    ],
)
def test_a_resolved_program_is_not(source: str) -> None:
    assert list(findings_in(source, "activities/planted.py")) == []
