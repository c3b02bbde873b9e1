//! Repeats requests that waiting threads depend on (I6) until the kernel agrees, within reason.

use cowslip_sys::Errno;

const ATTEMPTS: usize = 1000;

/// Retries until it succeeds, except when a descriptor is gone: no thread waits for that one.
pub(crate) fn retry_until_ok<T>(mut request: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..ATTEMPTS {
        match request() {
            Ok(answer) => return Ok(answer),
            Err(errno @ (Errno::BADF | Errno::NOTTY)) => return Err(errno),
            Err(_) => std::thread::yield_now(),
        }
    }
    request()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_the_kernel_agrees_or_never_will() {
        let mut calls = 0;
        let mut answers = |last: Result<(), Errno>| {
            calls = 0;
            let answered = retry_until_ok(|| {
                calls += 1;
                if calls < 5 { Err(Errno::AGAIN) } else { last }
            });
            (answered, calls)
        };
        assert_eq!(answers(Ok(())), (Ok(()), 5));
        assert_eq!(answers(Err(Errno::BADF)), (Err(Errno::BADF), 5));
        assert_eq!(answers(Err(Errno::NOMEM)), (Err(Errno::NOMEM), ATTEMPTS));
    }
}
