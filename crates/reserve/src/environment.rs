// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says.

use std::ffi::CStr;

/// Where the daemon listens unless `BURSAR_SOCKET` says otherwise.
const DEFAULT_SOCKET: &[u8] = b"/run/bursar/bursar.sock";

/// Where the daemon listens: `BURSAR_SOCKET`, which set-uid programs do not look at.
pub fn socket_path() -> &'static [u8] {
    variable(c"BURSAR_SOCKET").map_or(DEFAULT_SOCKET, CStr::to_bytes)
}

/// An environment variable; none in set-uid programs, whose environment is somebody else's. Not for
/// inside malloc: it races with setenv(3).
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    unsafe extern "C" {
        fn secure_getenv(name: *const libc::c_char) -> *mut libc::c_char;
    }
    // SAFETY: a C string; the result is NULL or a C string of the environment.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment; as with getenv(3), nobody may change it meanwhile.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) })
}
