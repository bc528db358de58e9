// Whether keys may be sent now: rights, lock of the screen, secure input. What this macOS does not tell is null.
ObjC.import('ApplicationServices');
ObjC.import('CoreGraphics');
ObjC.import('Foundation');
// Bound by hand: the list of functions that JavaScript knows by itself lacks newer ones.
function told(name) {
  try { ObjC.bindFunction(name, ['bool', []]); return Boolean($[name]()); } catch (error) { return null; }
}
function session() {
  try {
    ObjC.bindFunction('CGSessionCopyCurrentDictionary', ['id', []]);
    return ObjC.deepUnwrap($.CGSessionCopyCurrentDictionary());
  } catch (error) { return {}; }
}
function run() {
  const found = session();
  return JSON.stringify({
    trusted: told('AXIsProcessTrusted'),
    may_post: told('CGPreflightPostEventAccess'),
    // Over ssh and for daemons there is none.
    desktop: Boolean(found),
    locked: Boolean(found && found.CGSSessionScreenIsLocked),
    secure_input: Number(found && found.kCGSSessionSecureInputPID || 0),
    version: ObjC.unwrap($.NSProcessInfo.processInfo.operatingSystemVersionString),
  });
}
