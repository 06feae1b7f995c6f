//! The OCI runtime as a child of the launcher: started in the launcher's own memory, as `vfork` does, and waited for. A fork
//! would copy the page tables of a program that is thrown away a moment later, which was a quarter of a launch's own cost.
//! Between its start and its exec the child makes system calls and nothing else.

use crate::sandbox::container::launch::die_with_parent;
use nix::errno::Errno;
use nix::sched::{CloneFlags, clone};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicI32, Ordering};

/// For the few calls before its exec.
const STACK: usize = 64 << 10;
const PATH: &std::ffi::CStr = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs `words`, the first of which is the path of a program, to its end: with this process's stdio, an environment of its
/// own, and in the network namespace if one is given. It dies with this process.
pub fn run(words: &[&OsStr], namespace: Option<&File>) -> io::Result<ExitStatus> {
    let words = words.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    let envp = [PATH.as_ptr(), std::ptr::null()];
    let (parent, namespace) = (std::process::id() as i32, namespace.map(AsRawFd::as_raw_fd));
    // Why there was no exec. The child writes it where we read it.
    let failure = AtomicI32::new(0);
    let begin = || {
        let begun = begin(parent, namespace, &argv, &envp);
        failure.store(begun.raw_os_error().unwrap_or(libc::EINVAL), Ordering::Relaxed);
        127
    };
    let mut stack = vec![0; STACK];
    // SAFETY: we do not go on before the child has called exec or is gone, so what it uses outlives it, and nobody else
    // writes there. The child neither allocates nor unwinds.
    let child = unsafe {
        clone(Box::new(begin), &mut stack, CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK, Some(libc::SIGCHLD))
    }?;
    let mut status = 0;
    // SAFETY: it writes one int.
    while let Err(e) = Errno::result(unsafe { libc::waitpid(child.as_raw(), &raw mut status, 0) }) {
        if e != Errno::EINTR {
            return Err(e.into());
        }
    }
    match failure.into_inner() {
        0 => Ok(ExitStatus::from_raw(status)),
        why => Err(io::Error::from_raw_os_error(why)),
    }
}

/// Returns only to say why it could not.
fn begin(parent: i32, namespace: Option<i32>, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> io::Error {
    let prepared = die_with_parent(parent).and_then(|()| {
        // SAFETY: plain numbers and a constant string. Handlers are the child's own, and Rust's of SIGPIPE is not for others.
        unsafe {
            Errno::result(libc::chdir(c"/".as_ptr()))?;
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if let Some(namespace) = namespace {
                Errno::result(libc::setns(namespace, libc::CLONE_NEWNET))?;
            }
        }
        Ok(())
    });
    if let Err(e) = prepared {
        return e;
    }
    // SAFETY: both end with a null pointer, and their strings with a NUL.
    unsafe { libc::execve(argv[0], argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'w>(words: &'w [&'w str]) -> Vec<&'w OsStr> {
        words.iter().map(OsStr::new).collect()
    }

    #[test]
    fn a_program_runs_to_its_end_and_what_it_says_counts() {
        assert_eq!(run(&words(&["/bin/sh", "-c", "exit 3"]), None).unwrap().code(), Some(3));
        assert_eq!(run(&words(&["/bin/sh", "-c", "kill -9 $$"]), None).unwrap().signal(), Some(9));
        let checks = "test \"$PWD\" = / && test $(env | grep -vc '^PWD=\\|^_=\\|^SHLVL=\\|^OLDPWD=') = 1";
        assert_eq!(run(&words(&["/bin/sh", "-c", checks]), None).unwrap().code(), Some(0));
    }

    #[test]
    fn a_program_that_is_not_there_is_told_as_such() {
        let error = run(&words(&["/no/such/program"]), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(run(&words(&["/bin/sh\0"]), None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
