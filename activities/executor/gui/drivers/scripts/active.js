// The main window of the frontmost program.
function run() {
  const process = Application('System Events').applicationProcesses.whose({frontmost: true})[0];
  let title = '';
  try { title = process.windows.whose({_match: [ObjectSpecifier().attributes['AXMain'].value, true]})[0].name() || ''; }
  catch (error) {
    try { title = process.windows[0].name() || ''; } catch (none) { return 'null'; }
  }
  const [pid, app] = [process.unixId(), process.bundleIdentifier() || process.name()];
  return JSON.stringify({id: `${pid}:${title}`, pid, app, title});
}
