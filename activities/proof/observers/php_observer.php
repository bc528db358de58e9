<?php

// Prepended to each program of PHP that a check starts: lets PHPUnit log its tests, and tells of them at the end. Lines
// as in tightloop_observer.py.
(static function (): void {
    $place = getenv('TIGHTLOOP_OBSERVE') ?: '';
    $words = $_SERVER['argv'] ?? [];
    $program = basename(realpath($words[0] ?? '') ?: '');
    $other = ['--version', '--help', '-h', '--list-tests', '--list-suites', '--list-groups', '--check-version'];
    // PHPUnit needs the extension for its own settings.
    if (!class_exists('DOMDocument') || !preg_match('/^phpunit(?:[-\d.]*)(?:\.phar)?$/', $program) || array_intersect($other, $words) || $place === '') {
        return;
    }
    $cut = strrpos($place, ':');
    $path = substr($place, 0, $cut);
    $head = ['n' => substr($place, $cut + 1), 'pid' => getmypid(), 's' => 'phpunit.' . getmypid()];
    $tell = static function (string $event, array $fields) use ($path, $head): void {
        $line = json_encode($head + ['e' => $event] + $fields, JSON_INVALID_UTF8_SUBSTITUTE);
        file_put_contents($path, $line . "\n", FILE_APPEND);
    };
    $log = tempnam(sys_get_temp_dir(), 'phpunit');
    array_splice($_SERVER['argv'], 1, 0, ['--log-junit', $log]);
    $GLOBALS['argv'] = $_SERVER['argv'];
    $GLOBALS['argc'] = $_SERVER['argc'] = count($_SERVER['argv']);
    $tell('session', ['k' => 'phpunit']);
    register_shutdown_function(static function () use ($log, $tell): void {
        // PHPUnit writes the log when all tests have run.
        $document = new DOMDocument();
        if (filesize($log) && @$document->load($log)) {
            foreach ($document->getElementsByTagName('testcase') as $case) {
                $has = static fn (string $name): bool => $case->getElementsByTagName($name)->length > 0;
                $result = $has('failure') || $has('error') ? 'failed' : ($has('skipped') ? 'skipped' : 'passed');
                $class = $case->getAttribute('class') ?: $case->getAttribute('classname');
                $tell('test', ['id' => $class . '::' . $case->getAttribute('name'), 'r' => $result]);
            }
            $tell('finish', []);
        }
        unlink($log);
    });
})();
