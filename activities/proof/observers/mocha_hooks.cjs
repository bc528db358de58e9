// Root hooks of mocha: tell of each test that ran. What is skipped has no hook, and so is not told of.
'use strict';
const { tell, test } = require('./node_observer.cjs');

tell('mocha', 'session', { k: 'mocha' });

exports.mochaHooks = {
  afterEach() {
    const one = this.currentTest;
    test('mocha', one.file, one.titlePath().join(' > '), one.state === 'passed' ? 'passed' : 'failed');
  },
  afterAll() {
    tell('mocha', 'finish', {});
  },
};

// With --parallel the first process runs no test itself, so that no other hook of it is called.
exports.mochaGlobalTeardown = () => tell('mocha', 'finish', {});
