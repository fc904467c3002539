// Who is logged in and what may be done; set once a session is known.

export const session = { subject: "", tenant: "", roles: [], endsAt: "", cluster: "", version: "", serving: null };

export const seesTenant = () => session.roles.includes("codeq:view") || session.roles.includes("codeq:admin");
export const administers = () => session.roles.includes("codeq:admin");
export const operates = () => session.roles.includes("codeq:operator");
