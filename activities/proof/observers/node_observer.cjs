// Read by each Node that a check starts: makes jest, mocha and vitest tell of each test, by an option on their command line.
// The lines are those of `tightloop_observer.py`.
'use strict';
const fs = require('fs');
const path = require('path');

const { watchLoads } = require('./node_loads.cjs');

const PLACE = process.env.TIGHTLOOP_OBSERVE || '';
const OTHER_WORK = /^--(version|help|listTests|showConfig|init|clearCache)$|^-[vh]$/;
const RUNNERS = [
  ['jest', /[\\/]jest(-cli)?[\\/]bin[\\/]jest\.js$/, () => [`--testResultsProcessor=${here('jest_results.cjs')}`]],
  ['mocha', /[\\/]mocha[\\/](bin[\\/]_?mocha(\.js)?|lib[\\/]cli[\\/]cli\.js)$/, () => [`--require=${here('mocha_hooks.cjs')}`]],
  ['vitest', /[\\/]vitest[\\/]vitest\.mjs$/, () => ['--reporter=default', `--reporter=${here('vitest_reporter.mjs')}`]],
];

const here = name => path.join(__dirname, name);

exports.tell = (runner, event, fields) => {
  const cut = PLACE.lastIndexOf(':');
  const line = { n: PLACE.slice(cut + 1), e: event, pid: process.pid, s: `${runner}.${process.pid}`, ...fields };
  try {
    fs.appendFileSync(PLACE.slice(0, cut), JSON.stringify(line) + '\n');
  } catch {
    // Nothing is told, so that the report is missing.
  }
};

exports.test = (runner, file, name, result) => {
  const id = `${path.relative(process.cwd(), file || '')} > ${name}`;
  exports.tell(runner, 'test', { id, r: result });
};

function observe() {
  if (!PLACE || !require('worker_threads').isMainThread || !process.argv[1]) return;
  watchLoads((event, fields) => exports.tell('', event, fields));
  let program = process.argv[1];
  try {
    program = fs.realpathSync(program);
  } catch {
    return;
  }
  const found = RUNNERS.find(([, pattern]) => pattern.test(program));
  const words = process.argv.slice(2);
  if (!found || words.some(word => OTHER_WORK.test(word))) return;
  const more = found[2]().filter(word => word === '--reporter=default' || !words.includes(word));
  const end = process.argv.indexOf('--');
  process.argv.splice(end < 0 ? process.argv.length : end, 0, ...more);
  // The other runners begin their session themselves; jest tells nothing before its end.
  if (found[0] === 'jest') exports.tell('jest', 'session', { k: 'jest' });
}

observe();
