"""`tightloop scenarios`: write, pack and check hidden scenarios."""

import tempfile
from pathlib import Path
from typing import Annotated

import click

from tightloop.cli.host.server_part import run_again
from tightloop.cli.parameters import Argument, AsJson, EpisodeId, Option
from tightloop.cli.session import session_of
from tightloop.cli.start import Workspace
from tightloop.cli.terminal import print_note, show, show_either, show_json
from tightloop.client import EpisodeStatus, HiddenScenarios, Kind, TightloopClient
from tightloop.client.proof.verify import open_repository
from tightloop.client.scenarios import FILE, ScenarioStore, write_scenarios, write_template
from tightloop.episode.check import CheckStatus
from tightloop.episode.scenarios import ScenarioBundle
from tightloop.errors import InvalidRequestError
from tightloop.host.access import write_over
from tightloop.run.outcome import FAILED
from tightloop.wording import format_count

PathOrBundle = Annotated[Path, Argument(metavar="PATH", help="Folder, YAML file or encrypted bundle.")]


def new(
    _context: click.Context,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="New folder, outside all workspaces.")],
) -> None:
    write_template(folder)
    show(f"wrote {folder}. Edit {folder / FILE}, then try the scenarios: tightloop scenarios check {folder}")


def pack(
    context: click.Context,
    path: PathOrBundle,
    output: Annotated[
        Path | None, Option(help="Also write an encrypted bundle to this file, for use on another host.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    store = ScenarioStore(session_of(context).settings)
    commitment = store.commit(path)
    if output is not None:
        try:
            output.write_bytes(store.seal(store.load(commitment)))
        except OSError as error:
            raise InvalidRequestError(f"cannot write {output}: {error.strerror}") from None
        print_note(f"wrote {output}. Only hosts with your key file can decrypt it")
    request = commitment.model_dump(mode="json", exclude_defaults=True)
    show_either(request, f"{format_count(commitment.count, 'scenario')}, sha256 {commitment.digest}", as_json=as_json)


def check(context: click.Context, path: PathOrBundle, workspace: Workspace = None, as_json: AsJson = False) -> None:
    session, root = session_of(context), Path(workspace or ".").resolve()
    bundle = ScenarioStore(session.settings).read(path, workspace=root)
    with open_repository(root) as repository, tempfile.TemporaryDirectory(prefix="tightloop-scenarios-") as temporary:
        # On macOS the temporary folder is reached through a link.
        content = Path(temporary).resolve() / "tree"
        content.mkdir()
        repository.check_out(repository.on_disk(), content)
        write_over(content, bundle.file_contents)
        commands = tuple(scenario.command for scenario in bundle.scenarios)
        results = run_again(session, repository.root, content, commands, isolated=True)
    for scenario, result in zip(bundle.scenarios, results, strict=True):
        if result["status"] == CheckStatus.PASSED and not scenario.accepts_output(result["tail"]):
            result |= {"status": CheckStatus.FAILED.value, "tail": f"{result['tail']}\nexpected: {scenario.prints}"}
        result |= {"run": scenario.run}
    passed = [result["status"] == CheckStatus.PASSED for result in results]
    if as_json:
        show_json(
            [{**result, "name": scenario.title} for scenario, result in zip(bundle.scenarios, results, strict=True)]
        )
    else:
        for scenario, result, is_passed in zip(bundle.scenarios, results, passed, strict=True):
            show(f"{result['status'].replace('_', ' ')}: {scenario.title}")
            if not is_passed and result["tail"]:
                show(*(f"  {line}" for line in result["tail"].strip().splitlines()))
        show(f"{sum(passed)} of {format_count(len(passed), 'scenario')} passed")
    if not all(passed):
        raise click.exceptions.Exit(FAILED)


def show_drafts(
    context: click.Context,
    workflow: EpisodeId,
    output: Annotated[
        Path | None,
        Option(
            help=(
                "Also write the scenarios to this new folder. Edit the files, and then pass the folder to --scenarios."
            )
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    session = session_of(context)

    async def look(client: TightloopClient, key: str) -> HiddenScenarios | None:
        status = await client.status(key)
        return status.drafts if isinstance(status, EpisodeStatus) else None

    drafts, store = session.on(workflow, look, Kind.EPISODE), ScenarioStore(session.settings)
    if drafts is None or not drafts.count:
        raise InvalidRequestError("no scenario was drafted for this episode")
    bundle, answers = store.load(drafts), store.find_answers(drafts.digest)
    if output is not None:
        write_scenarios(output, bundle)
        print_note(
            f"wrote {output}. Edit the scenarios, and then run: tightloop amend {workflow} --scenarios {output} "
            "--no-drafts"
        )
    rows = [
        {
            "number": number + 1,
            **scenario.model_dump(mode="json", include={"run", "prints", "keep"}),
            "files": {path: text for path, text in _texts(bundle).items() if path in scenario.run},
            "withdrawn": number in drafts.withdrawn,
            "answer": answers.get(number),
        }
        for number, scenario in enumerate(bundle.scenarios)
    ]
    if as_json:
        show_json(rows)
        return
    for draft in rows:
        show(f"{draft['number']}: {draft['run']}{' (withdrawn)' if draft['withdrawn'] else ''}")
        show(*(f"  | {line}" for text in draft["files"].values() for line in text.splitlines()))
        show(f"  expected: {draft['prints']}{' (unchanged from the start)' if draft['keep'] else ''}")
        if draft["answer"] is not None:
            show(f"  the product prints: {draft['answer'] or 'nothing'}")


def _texts(bundle: ScenarioBundle) -> dict[str, str]:
    return {path: content.decode("utf-8", "replace") for path, content in bundle.file_contents.items()}
