// What went wrong with a request, in words for a person.

const WORDS = {
  unauthenticated: "The server does not know who you are. Sign in with a token.",
  forbidden: "Your token does not allow this.",
  not_found: "This session does not exist, or you have no access to it.",
  busy: "A turn is running.",
  too_many: "Too many requests at once; wait a moment.",
  shutting_down: "The server is shutting down. The page tries again.",
  unavailable: "The server cannot do this right now. The page tries again.",
};

/** `code` is the server's, or `offline` if it could not be reached. */
export class ApiProblem extends Error {
  constructor(status, code, detail) {
    super(detail || WORDS[code] || `The server answered ${status}.`);
    this.status = status;
    this.code = code;
  }

  /** Whether the same request may succeed later. */
  get passes() {
    return this.code === "offline" || this.status === 503 || this.status === 429;
  }
}

export function offline(detail = "The server cannot be reached.") {
  return new ApiProblem(0, "offline", detail);
}

/** Reads the problem from a bad answer, whatever its body is. */
export async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  return problemIn(response.status, body);
}

/** The same for a body that was read already. */
export function problemIn(status, body) {
  return new ApiProblem(status, body?.code ?? String(status), body?.detail ?? "");
}
