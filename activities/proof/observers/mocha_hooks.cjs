// Root hooks of mocha: tell of each test that ran. A test marked as skipped has no hook, and so is not told of.
'use strict';
const { tell, test } = require('./node_observer.cjs');

tell('mocha', 'session', { k: 'mocha' });

exports.mochaHooks = {
  afterEach() {
    const one = this.currentTest;
    // A test that calls this.skip() while it runs has its hook.
    const result = one.isPending() ? 'skipped' : one.state === 'passed' ? 'passed' : 'failed';
    test('mocha', one.file, one.titlePath().join(' > '), result);
  },
  afterAll() {
    tell('mocha', 'finish', {});
  },
};

// With --parallel the first process runs no test itself, so that no other hook of it is called.
exports.mochaGlobalTeardown = () => tell('mocha', 'finish', {});
