// Takes the results of jest once all tests ran, and leaves them as they are.
'use strict';
const { tell, test } = require('./node_observer.cjs');

module.exports = results => {
  for (const file of results.testResults) {
    for (const one of file.testResults) {
      const result = one.status === 'passed' || one.status === 'failed' ? one.status : 'skipped';
      test('jest', file.testFilePath, one.fullName, result);
    }
  }
  tell('jest', 'finish', {});
  return results;
};
