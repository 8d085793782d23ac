//! Status codes.

/// A status of RFC 9110, chapter 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u16, &'static str);

macro_rules! known {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal;)*) => {
        #[allow(missing_docs)]
        impl Status {
            $(pub const $name: Self = Self($number, $text);)*
        }
    };
}

known! {
    OK = 200 "OK";
    NO_CONTENT = 204 "No Content";
    PARTIAL = 206 "Partial Content";
    MOVED = 301 "Moved Permanently";
    NOT_MODIFIED = 304 "Not Modified";
    BAD_REQUEST = 400 "Bad Request";
    UNAUTHORIZED = 401 "Unauthorized";
    FORBIDDEN = 403 "Forbidden";
    NOT_FOUND = 404 "Not Found";
    NOT_ALLOWED = 405 "Method Not Allowed";
    TIMEOUT = 408 "Request Timeout";
    PRECONDITION = 412 "Precondition Failed";
    TOO_LARGE = 413 "Content Too Large";
    TARGET_TOO_LONG = 414 "URI Too Long";
    RANGE = 416 "Range Not Satisfiable";
    EXPECTATION = 417 "Expectation Failed";
    MISDIRECTED = 421 "Misdirected Request";
    HEADERS_TOO_LARGE = 431 "Request Header Fields Too Large";
    INTERNAL = 500 "Internal Server Error";
    NOT_IMPLEMENTED = 501 "Not Implemented";
    BAD_GATEWAY = 502 "Bad Gateway";
    UNAVAILABLE = 503 "Service Unavailable";
    GATEWAY_TIMEOUT = 504 "Gateway Timeout";
    VERSION = 505 "HTTP Version Not Supported";
}

impl Status {
    /// The three-digit number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The text for people.
    pub fn text(self) -> &'static str {
        self.1
    }
}
