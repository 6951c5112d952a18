"""Secrets for sinks: where they are, read afresh whenever one is needed, shown to nobody.

A *reference* (`reference`) says where a secret is; its text is taken apart into *fields* (`fields`), which are kept in
`secret.Secrets`. A `credential.Credential` says which sinks a reference is for; `local` is the credential store in the
home; `chain` asks all of them in order, from the sink's own reference to the backend's own chain.
"""
