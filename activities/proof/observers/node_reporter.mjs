// A reporter of `node --test`: tells of each test, a line of JSON, with the nonce of the check. It runs in the process of
// the runner, apart from the tests.
const nonce = (process.env.TIGHTLOOP_OBSERVE ?? '').split(':').pop();
const line = (event, fields) => JSON.stringify({ n: nonce, e: event, pid: process.pid, s: 'node', ...fields }) + '\n';

export default async function* tell(source) {
  const names = [];
  yield line('session', { k: 'node' });
  for await (const event of source) {
    const data = event.data;
    if (event.type === 'test:start') {
      names.length = data.nesting;
      names[data.nesting] = data.name;
    }
    if (event.type !== 'test:pass' && event.type !== 'test:fail') continue;
    // A file, and a suite, has no result of its own.
    if (data.details?.type === 'suite' || (data.nesting === 0 && data.file && data.file.endsWith(data.name))) continue;
    const name = [...names.slice(0, data.nesting), data.name].join(' > ');
    const skipped = data.skip !== undefined || data.todo !== undefined;
    const result = skipped ? 'skipped' : event.type === 'test:pass' ? 'passed' : 'failed';
    yield line('test', { id: name, r: result });
  }
  yield line('finish', {});
}
