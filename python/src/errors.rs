//! The engine's errors as exceptions: one for each kind, all of them `cowslip.Error`.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use cowslip::ErrorKind;

create_exception!(cowslip, Error, PyException, "What failed, on what, and what to do about it.");
create_exception!(cowslip, UsageError, Error, "The request makes no sense.");
create_exception!(cowslip, UnsupportedError, Error, "This kernel cannot do it.");
create_exception!(cowslip, DeniedError, Error, "This process may not do it.");
create_exception!(cowslip, VanishedError, Error, "The process asked about is gone.");
create_exception!(cowslip, OutOfMemoryError, Error, "There is not enough memory or address space.");
create_exception!(cowslip, BusyError, Error, "Somebody still uses what would have to change.");
create_exception!(cowslip, CorruptError, Error, "What was read is not what it should be.");
create_exception!(cowslip, FileError, Error, "A file cannot be read or written.");
create_exception!(cowslip, SystemError, Error, "The kernel refused for another reason.");

/// The exception for an error of the engine's, with its `errno` and `advice`.
pub(crate) fn raise(error: &cowslip::Error) -> PyErr {
    let text = error.to_string();
    let exception = match error.kind() {
        ErrorKind::Usage => UsageError::new_err(text),
        ErrorKind::Unsupported => UnsupportedError::new_err(text),
        ErrorKind::Denied => DeniedError::new_err(text),
        ErrorKind::Vanished => VanishedError::new_err(text),
        ErrorKind::OutOfMemory => OutOfMemoryError::new_err(text),
        ErrorKind::Busy => BusyError::new_err(text),
        ErrorKind::Corrupt => CorruptError::new_err(text),
        ErrorKind::File => FileError::new_err(text),
        _ => SystemError::new_err(text),
    };
    Python::attach(|py| {
        let value = exception.value(py);
        let told = value.setattr("errno", error.errno());
        told.and_then(|()| value.setattr("advice", error.advice()))
            .map_or_else(|it| it, |()| exception.clone_ref(py))
    })
}

/// A wrong argument.
pub(crate) fn usage(text: impl Into<String>) -> PyErr {
    UsageError::new_err(text.into())
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = py.get_type::<Error>();
    // Where no errno and no advice are known.
    base.setattr("errno", py.None())?;
    base.setattr("advice", py.None())?;
    module.add("Error", base)?;
    module.add("UsageError", py.get_type::<UsageError>())?;
    module.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    module.add("DeniedError", py.get_type::<DeniedError>())?;
    module.add("VanishedError", py.get_type::<VanishedError>())?;
    module.add("OutOfMemoryError", py.get_type::<OutOfMemoryError>())?;
    module.add("BusyError", py.get_type::<BusyError>())?;
    module.add("CorruptError", py.get_type::<CorruptError>())?;
    module.add("FileError", py.get_type::<FileError>())?;
    module.add("SystemError", py.get_type::<SystemError>())
}
