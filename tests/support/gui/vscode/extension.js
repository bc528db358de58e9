// The agent of an editor of the VS Code family, as Cursor's: it runs the user's hooks for each prompt, works for a
// moment, and ends its turn. What it got is a line of JSON in `log`; how long it works is in `work_s`.
const { appendFileSync, existsSync, readFileSync } = require("node:fs");
const { homedir } = require("node:os");
const { join } = require("node:path");
const { spawnSync } = require("node:child_process");
const vscode = require("vscode");

const place = (name) => join(process.env.STANDIN_FOLDER, name);

const run = (name, fields) => {
  const { hooks } = JSON.parse(readFileSync(join(homedir(), ".cursor", "hooks.json"), "utf8"));
  const roots = (vscode.workspace.workspaceFolders ?? []).map(({ uri }) => uri.fsPath);
  const input = JSON.stringify({ hook_event_name: name, conversation_id: "c-1", workspace_roots: roots, ...fields });
  const answers = (hooks[name] ?? []).map(({ command }) =>
    JSON.parse(spawnSync(command, { shell: true, input, encoding: "utf8", timeout: 20000 }).stdout || "{}"));
  return Object.assign({}, ...answers);
};

const answer = async (request, _context, stream) => {
  const answered = run("beforeSubmitPrompt", { prompt: request.prompt });
  if (answered.continue === false) { stream.markdown(answered.user_message); return; }
  appendFileSync(place("log"), JSON.stringify(request.prompt) + "\n");
  const seconds = existsSync(place("work_s")) ? Number(readFileSync(place("work_s"), "utf8")) : 0.3;
  await new Promise((done) => setTimeout(done, 1000 * seconds));
  stream.markdown("Done: everything in the plan.");
  run("afterAgentResponse", { text: "Done: everything in the plan." });
  // As in Cursor: what the hook gives is the next prompt of the user, once this turn is over.
  const given = run("stop", { status: "completed", loop_count: 0 }).followup_message;
  if (given) setTimeout(() => vscode.commands.executeCommand("workbench.action.chat.open", { query: given }), 500);
};

exports.activate = (context) => {
  const metadata = { vendor: "standin", name: "Stand-in", family: "standin", version: "1", maxInputTokens: 1e6,
    maxOutputTokens: 1e6, isDefault: true, isUserSelectable: true };
  const provider = { provideLanguageModelResponse: async () => {}, provideTokenCount: async () => 1 };
  context.subscriptions.push(
    vscode.lm.registerChatModelProvider("standin", provider, metadata),
    vscode.chat.createChatParticipant("standin.agent", answer),
  );
  appendFileSync(place("log"), "");
};
