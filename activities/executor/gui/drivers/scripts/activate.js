// Arguments: process id, title of the window.
function run(argv) {
  const [pid, title] = [Number(argv[0]), argv[1]];
  const process = Application('System Events').applicationProcesses.whose({unixId: pid})[0];
  process.frontmost = true;
  process.windows.whose({name: title})[0].actions['AXRaise'].perform();
}
