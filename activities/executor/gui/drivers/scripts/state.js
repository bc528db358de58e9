// Whether keys may be sent now: rights, lock of the screen, secure input.
ObjC.import('ApplicationServices');
ObjC.import('CoreGraphics');
ObjC.import('Foundation');
function run() {
  const session = ObjC.deepUnwrap(ObjC.castRefToObject($.CGSessionCopyCurrentDictionary())) || {};
  const info = $.NSProcessInfo.processInfo;
  return JSON.stringify({
    trusted: Boolean($.AXIsProcessTrusted()),
    may_post: Boolean($.CGPreflightPostEventAccess()),
    locked: Boolean(session.CGSSessionScreenIsLocked),
    secure_input: Number(session.kCGSSessionSecureInputPID || 0),
    version: ObjC.unwrap(info.operatingSystemVersionString),
  });
}
