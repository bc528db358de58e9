// A reporter of vitest beside its usual one. It has the methods of vitest 1 and 2, and those from 3 on.
import observer from './node_observer.cjs';

const { tell, test } = observer;
const outcome = state => (state === 'passed' || state === 'pass' ? 'passed' : state === 'failed' || state === 'fail' ? 'failed' : 'skipped');

function walk(file, tasks, above) {
  for (const task of tasks ?? []) {
    const names = [...above, task.name];
    if (task.type === 'suite') walk(file, task.tasks, names);
    else test('vitest', file, names.join(' > '), task.mode === 'run' ? outcome(task.result?.state) : 'skipped');
  }
}

export default class Observer {
  onInit() {
    tell('vitest', 'session', { k: 'vitest' });
  }

  onFinished(files) {
    if (this.ended) return;
    this.ended = true;
    for (const file of files ?? []) walk(file.filepath, file.tasks, []);
    tell('vitest', 'finish', {});
  }

  onTestRunEnd(modules) {
    if (this.ended) return;
    this.ended = true;
    for (const file of modules) {
      for (const one of file.children.allTests()) test('vitest', file.moduleId, one.fullName, outcome(one.result().state));
    }
    tell('vitest', 'finish', {});
  }
}
