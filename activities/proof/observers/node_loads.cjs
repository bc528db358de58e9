// Reports the files of the tree that a Node process loads, runs and changes. The lines are those of `tightloop_loads.py`.
'use strict';
const fs = require('fs');
const path = require('path');
const Module = require('module');
const children = require('child_process');

const ROOTS = (process.env.TIGHTLOOP_TREE || '').split(path.delimiter).filter(Boolean).map(root => root.replace(/\/?$/, '/'));
const EXPORTS = ['readFileSync', 'readFile', 'createReadStream', 'openSync'];
const OF_RUNNERS = /\/node_modules\/(?:jest[\w-]*|@jest\/[\w-]+|mocha|vitest|@vitest\/[\w-]+|ava|nyc|c8)\//;
const edges = new Set();

function pathInTree(name) {
  if (typeof name !== 'string' || !name) return '';
  const full = name.startsWith('file://') ? name.slice(7) : path.resolve(name);
  const root = ROOTS.find(one => full.startsWith(one));
  return root === undefined || full.includes('/node_modules/') ? '' : full.slice(root.length);
}

// The files of the tree that act, innermost first.
function callers() {
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 60;
  const stack = new Error().stack || '';
  Error.stackTraceLimit = limit;
  const places = stack.split('\n').slice(1).map(line => /\(?((?:file:\/\/)?\/[^():]+):(\d+):\d+\)?$/.exec(line));
  return places.filter(Boolean).map(([, file, line]) => [pathInTree(file), Number(line)]).filter(([file]) => file);
}

exports.watchLoads = tell => {
  if (!ROOTS.length) return;
  const once = (event, by, file) => {
    const key = `${event} ${by} ${file}`;
    if (edges.has(key)) return;
    edges.add(key);
    tell(event, { by, file });
  };
  exports.once = once;
  const main = pathInTree(process.argv[1]);
  if (main) once('run', '', main);
  watchModules(once);
  watchFiles(once);
  watchChildren(once);
  watchEnds(tell, main);
  watchBuiltins(tell);
};

function watchModules(once) {
  const load = Module._load;
  Module._load = function (request, parent, isMain) {
    let file = '';
    try {
      const found = Module._resolveFilename(request, parent, isMain);
      // Modules of Node itself have no path.
      file = path.isAbsolute(found) ? pathInTree(found) : '';
      if (file && !isMain) once('load', pathInTree(parent && parent.filename), file);
      // Transforms, reporters, environments, and set-up files of all tests.
      if (file && parent && OF_RUNNERS.test(parent.filename || '')) once('plugin', '', file);
    } catch {
      // The load below reports it.
    }
    const loaded = load.apply(this, arguments);
    if (request === 'jest-runtime' && loaded && !loaded.isWatched) watchJest(loaded, once);
    return loaded;
  };
}

// Jest loads modules by itself: tests and set-up files without a name, mocks in place of other modules.
function watchJest(loaded, once) {
  const prototype = (loaded.default || loaded).prototype;
  if (!prototype) return;
  loaded.isWatched = true;
  const inside = [];
  const wrap = (name, note) => {
    const plain = prototype[name];
    if (!plain) return;
    prototype[name] = function (from, ...rest) {
      note(this, from, rest);
      return plain.call(this, from, ...rest);
    };
  };
  wrap('requireModule', (runtime, from, [name]) => {
    if (name === undefined && from !== runtime._testPath) once('plugin', '', pathInTree(from));
  });
  const transform = prototype.transformFile;
  if (transform) {
    prototype.transformFile = function (file, ...rest) {
      const by = (callers()[0] || [''])[0];
      const loadedFile = pathInTree(file);
      if (loadedFile) once('load', by === loadedFile ? '' : by, loadedFile);
      // Jest loads these in place of the modules that they are named after.
      if (/(^|\/)__mocks__\//.test(loadedFile)) once('plugin', by, loadedFile);
      return transform.call(this, file, ...rest);
    };
  }
}

function watchFiles(once) {
  for (const target of [fs, fs.promises]) {
    for (const name of EXPORTS) {
      const plain = target[name];
      if (typeof plain !== 'function') continue;
      target[name] = function (file, ...rest) {
        const read = pathInTree(String(file));
        if (read && !isOfModules()) once('load', (callers()[0] || [''])[0], read);
        return plain.call(this, file, ...rest);
      };
    }
  }
}

// Node reads the source of a module by the same functions; `Module._load` has reported that already.
function isOfModules() {
  const caller = (new Error().stack || '').split('\n')[3];
  return /node:internal\/modules/.test(caller);
}

function watchChildren(once) {
  for (const name of ['spawn', 'spawnSync', 'execFile', 'execFileSync', 'exec', 'execSync', 'fork']) {
    const plain = children[name];
    children[name] = function (program, ...rest) {
      const list = Array.isArray(rest[0]) ? rest[0] : [];
      const by = (callers()[0] || [''])[0];
      for (const word of [program, ...list].flatMap(text => String(text).split(/[\s;&]+/))) {
        const file = pathInTree(word);
        if (file && fs.existsSync(word)) once('run', by, file);
      }
      return plain.call(this, program, ...rest);
    };
  }
}

function watchEnds(tell, main) {
  const exit = process.exit;
  process.exit = code => {
    const places = callers();
    const own = places.find(([file]) => file === main);
    if (!(code || process.exitCode) && main && own && places[0][0] !== main && !isAtItsEnd(own[1])) {
      tell('exit', { file: ROOTS[0] + places[0][0] });
    }
    exit.call(process, code);
  };
}

// The last statement of the main program, if it only calls a function: `main();`, but not `assert.equal(add(2, 2), 4);`.
function isAtItsEnd(line) {
  const lines = fs.readFileSync(process.argv[1], 'utf8').split('\n');
  const after = lines.slice(line).some(text => /\w/.test(text) && !/^\s*\/\//.test(text));
  return !after && /^\s*(?:await\s+)?(?:process\.exit\()?[\w.]+\([^()]*\)+;?\s*$/.test(lines[line - 1]);
}

function watchBuiltins(tell) {
  // Not the clock and not `Math.random`, which tests replace themselves.
  const watched = { assert: require('assert'), JSON, Object };
  const before = Object.entries(watched).flatMap(([name, one]) =>
    Object.getOwnPropertyNames(one).map(key => [one, key, Object.getOwnPropertyDescriptor(one, key).value, `${name}.${key}`]));
  process.on('exit', () => {
    for (const [one, key, value, name] of before) {
      if (typeof value === 'function' && one[key] !== value) tell('patch', { by: '', file: name });
    }
  });
}
