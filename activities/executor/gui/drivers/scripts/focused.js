// The element that has the focus in the frontmost program. Electron builds its tree only when it is asked to.
function run() {
  const process = Application('System Events').applicationProcesses.whose({frontmost: true})[0];
  const read = (element, name) => { try { return element.attributes[name].value(); } catch (error) { return null; } };
  try { process.attributes['AXManualAccessibility'].value = true; } catch (error) { /* not an Electron program */ }
  const element = read(process, 'AXFocusedUIElement');
  if (!element) return 'null';
  let settable = true;
  try { settable = element.attributes['AXValue'].settable(); } catch (error) { /* read-only elements have none */ }
  return JSON.stringify({
    role: read(element, 'AXRole'), description: read(element, 'AXDescription'), title: read(element, 'AXTitle'),
    placeholder: read(element, 'AXPlaceholderValue'), value: read(element, 'AXValue'), settable,
  });
}
