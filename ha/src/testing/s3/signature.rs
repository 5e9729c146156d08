//! Checks the signature of a request to S3 (AWS Signature Version 4, in the header), over method, path, query,
//! the signed headers and the body. Source: AWS, "Authenticating Requests: Using the Authorization Header".

use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest as _, Sha256};

use super::Credentials;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The block size of SHA-256 in bytes, to which HMAC pads its key.
const BLOCK: usize = 64;

/// Checks the signature. The error is S3's error code for a request that is not signed by `credentials`.
pub(super) fn check(
    request: &Request<()>,
    body: &[u8],
    credentials: &Credentials,
) -> Result<(), &'static str> {
    let headers = request.headers();
    let authorization = text(headers, AUTHORIZATION.as_str()).ok_or("AccessDenied")?;
    let fields = authorization
        .strip_prefix(ALGORITHM)
        .ok_or("InvalidRequest")?;
    let field = |name: &str| {
        let mut fields = fields.split(',').map(str::trim);
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let credential = field("Credential").ok_or("InvalidRequest")?;
    let signed = field("SignedHeaders").ok_or("InvalidRequest")?;
    let signature = field("Signature").ok_or("InvalidRequest")?;
    let (key, scope) = credential.split_once('/').ok_or("InvalidRequest")?;
    if key != credentials.key {
        return Err("InvalidAccessKeyId");
    }
    let date = text(headers, "x-amz-date").ok_or("AccessDenied")?;
    let digest = text(headers, "x-amz-content-sha256").ok_or("AccessDenied")?;
    if digest != hex(&Sha256::digest(body)) {
        return Err("XAmzContentSHA256Mismatch");
    }
    let canonical = canonical(request, signed, digest).ok_or("InvalidRequest")?;
    let hashed = hex(&Sha256::digest(canonical));
    let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{hashed}");
    // The scope is date/region/service/aws4_request, and each part derives the next key.
    let first = format!("AWS4{}", credentials.secret).into_bytes();
    let key = scope
        .split('/')
        .fold(first, |key, part| hmac(&key, part.as_bytes()).to_vec());
    if signature == hex(&hmac(&key, to_sign.as_bytes())) {
        Ok(())
    } else {
        Err("SignatureDoesNotMatch")
    }
}

fn canonical(request: &Request<()>, signed: &str, digest: &str) -> Option<String> {
    let uri = request.uri();
    let mut query: Vec<String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let is_pair = pair.contains('=');
            let end = if is_pair { "" } else { "=" };
            format!("{pair}{end}")
        })
        .collect();
    query.sort();
    let mut headers = String::new();
    for name in signed.split(';') {
        let value = text(request.headers(), name)?.trim();
        headers.push_str(&format!("{name}:{value}\n"));
    }
    let (method, path, query) = (request.method(), uri.path(), query.join("&"));
    Some(format!(
        "{method}\n{path}\n{query}\n{headers}\n{signed}\n{digest}"
    ))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let padded = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new().chain_update(padded(0x36));
    let inner = inner.chain_update(message).finalize();
    let outer = Sha256::new().chain_update(padded(0x5c));
    outer.chain_update(inner).finalize().into()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_authenticated_as_rfc_4231_says() {
        let sum = hmac(b"Jefe", b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&sum), expected);
    }
}
