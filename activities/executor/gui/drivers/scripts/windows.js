// All windows of the programs that are shown, with bundle id and title. The id is made of both: a title can change.
function run() {
  const found = [];
  for (const process of Application('System Events').applicationProcesses.whose({backgroundOnly: false})()) {
    let titles = [];
    try { titles = process.windows.name(); } catch (error) { continue; }
    const [pid, app] = [process.unixId(), process.bundleIdentifier() || process.name()];
    titles.forEach(title => found.push({id: `${pid}:${title || ''}`, pid, app, title: title || ''}));
  }
  return JSON.stringify(found);
}
