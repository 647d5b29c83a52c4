//! How a method of the protocol is declared: its name, its parameters and what it is for, in one place.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use softdpu_site::Problem;

use super::{ApiError, ErrorCode};

/// Parameters or a result without members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// The parameters of a request as they came.
pub(crate) struct Unread<'a> {
    pub(crate) method: &'a str,
    pub(crate) parameters: &'a Value,
    /// Where sockets are whose place is not given.
    pub(crate) run_directory: &'a Path,
}

impl Unread<'_> {
    /// The parameters as serde reads them.
    pub(crate) fn typed<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        // Serde would read a struct from an array of its fields too; the protocol has named parameters only.
        if !self.parameters.is_object() {
            return Err(self.invalid("\"params\" is not an object"));
        }
        T::deserialize(self.parameters).map_err(|error| self.invalid(error))
    }

    /// The parameters as the reader of site files reads them, with its defaults and messages.
    pub(crate) fn site<T>(&self, read: impl FnOnce(&Value) -> Result<T, Vec<Problem>>) -> Result<T, ApiError> {
        read(self.parameters).map_err(|problems| ApiError::from_problems(ErrorCode::InvalidParams, &problems))
    }

    /// That the parameters are wrong, and why.
    pub(crate) fn invalid(&self, why: impl std::fmt::Display) -> ApiError {
        ApiError::new(ErrorCode::InvalidParams, format!("{}: {why}", self.method))
    }
}

/// What a method takes.
pub(crate) trait Parameters: Serialize + DeserializeOwned {
    /// Reads and checks the parameters.
    fn read(unread: &Unread<'_>) -> Result<Self, ApiError> {
        unread.typed()
    }

    /// The parameters as they are written into a request.
    fn write(&self) -> Value {
        written(self)
    }
}

/// As JSON; null for a path that is no UTF-8, which no request can name.
pub(crate) fn written(parameters: &impl Serialize) -> Value {
    serde_json::to_value(parameters).unwrap_or_default()
}

/// Declares an enum of methods. A variant is a method: with the name in front of it, and with the parameters that it
/// has as its fields, or that the type in its brackets reads and writes (`Parameters`).
///
/// Its `METHODS` are the names, `method` is the name of a value and `parameters` what it is called with; `read` makes a
/// value of both.
macro_rules! methods {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $(
                $(#[$about:meta])*
                $method:literal => $variant:ident
                    $(($parameters:ty))?
                    $({ $($(#[$about_field:meta])* $field:ident: $type:ty),+ $(,)? })?
            ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "method", content = "params")]
        pub enum $name {
            $(
                $(#[$about])*
                #[serde(rename = $method)]
                $variant $(($parameters))? $({ $($(#[$about_field])* $field: $type),+ })?
            ),+
        }

        impl $name {
            /// The methods' names.
            pub const METHODS: &[&str] = &[$($method),+];

            /// The method's name.
            pub fn method(&self) -> &'static str {
                match self {
                    $($name::$variant { .. } => $method,)+
                }
            }

            /// What the method is called with.
            pub fn parameters(&self) -> serde_json::Value {
                $(methods!(@write self, $name::$variant $(($parameters))? $({ $($field),+ })?);)+
                serde_json::json!({})
            }

            /// Reads the parameters of one of these methods.
            pub(crate) fn read(unread: &$crate::methods::Unread<'_>) -> Option<Result<$name, $crate::ApiError>> {
                match unread.method {
                    $($method => Some(
                        methods!(@read unread, $name::$variant $(($parameters))? $({ $($field: $type),+ })?)
                    ),)+
                    _ => None,
                }
            }
        }
    };

    (@write $value:ident, $name:ident::$variant:ident) => {};
    (@write $value:ident, $name:ident::$variant:ident($parameters:ty)) => {
        if let $name::$variant(parameters) = $value {
            return <$parameters as $crate::methods::Parameters>::write(parameters);
        }
    };
    (@write $value:ident, $name:ident::$variant:ident { $($field:ident),+ }) => {
        if let $name::$variant { $($field),+ } = $value {
            return serde_json::json!({ $(stringify!($field): $crate::methods::written($field)),+ });
        }
    };

    (@read $unread:ident, $name:ident::$variant:ident) => {
        $unread.typed().map(|$crate::Empty {}| $name::$variant)
    };
    (@read $unread:ident, $name:ident::$variant:ident($parameters:ty)) => {
        <$parameters as $crate::methods::Parameters>::read($unread).map($name::$variant)
    };
    (@read $unread:ident, $name:ident::$variant:ident { $($field:ident: $type:ty),+ }) => {{
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            $($field: $type),+
        }
        $unread.typed().map(|Fields { $($field),+ }| $name::$variant { $($field),+ })
    }};
}

pub(crate) use methods;
