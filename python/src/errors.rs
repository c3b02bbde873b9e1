//! The engine's errors as the exceptions of `cowslip/_errors.py`.

use cowslip::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// An exception of the package, or Python's own error if the package's is not available.
fn exception(name: &str, text: &str) -> PyErr {
    Python::attach(|py| {
        let module = py.import("cowslip._errors")?;
        let class = module.getattr(name)?.cast_into::<PyType>()?;
        Ok(PyErr::from_type(class, (text.to_owned(),)))
    })
    .unwrap_or_else(|error: PyErr| error)
}

/// The exception for an error of the engine's, with its `errno` and `advice`.
pub(crate) fn raise(error: &cowslip::Error) -> PyErr {
    /// `ENOENT`.
    const NO_ENTRY: i32 = 2;
    let (clause, advice) = error.told();
    let text = advice.map_or_else(|| clause.clone(), |advice| format!("{clause}; {advice}"));
    let name = match (error.kind(), error.errno()) {
        (ErrorKind::Usage, _) => "UsageError",
        (ErrorKind::Unsupported, _) => "UnsupportedError",
        (ErrorKind::Denied, _) => "DeniedError",
        (ErrorKind::Vanished, _) => "VanishedError",
        (ErrorKind::OutOfMemory, _) => "OutOfMemoryError",
        (ErrorKind::Busy, _) => "BusyError",
        (ErrorKind::Corrupt, _) => "CorruptError",
        (ErrorKind::File, Some(NO_ENTRY)) => "MissingFileError",
        (ErrorKind::File, _) => "FileError",
        _ => "KernelError",
    };
    let exception = exception(name, &text);
    Python::attach(|py| {
        let value = exception.value(py);
        let told = value.setattr("errno", error.errno());
        told.and_then(|()| value.setattr("advice", error.advice()))
            .map_or_else(|error| error, |()| exception.clone_ref(py))
    })
}

/// A wrong argument.
pub(crate) fn usage(text: impl Into<String>) -> PyErr {
    exception("UsageError", &text.into())
}
