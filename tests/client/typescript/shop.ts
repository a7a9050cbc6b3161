// Submits a flow, sends a signal, waits for the end, and prints the values as JSON.
// Arguments: the address of the dashboard and a factory. The token is in TOKEN.
import createClient from "openapi-fetch";
import type { paths } from "./wbengine.ts";

const [address, factory] = process.argv.slice(2);
const wbengine = createClient<paths>({
  baseUrl: `${address}api/v1`,
  headers: { authorization: `Bearer ${process.env.TOKEN}` },
});

const submitted = await wbengine.POST("/flows", { body: { factory, tags: { shop: "paris" } } });
if (submitted.error) throw new Error(submitted.error.detail);
const flow: string = submitted.data.uuid;

const signal = { signal: "approved", value: { by: "ann", limit: 500 } };
const sent = await wbengine.POST("/flows/{flow}/signal", { params: { path: { flow } }, body: signal });
if (sent.error) throw new Error(sent.error.detail);

const query = { wait: 60 };
const ended = await wbengine.GET("/flows/{uuid}/result", { params: { path: { uuid: flow }, query } });
if (ended.error) throw new Error(ended.error.detail);

const again = await wbengine.POST("/flows/{flow}/signal", { params: { path: { flow } }, body: signal });
const type: string | undefined = again.error?.type;
console.log(JSON.stringify({ state: ended.data.state, values: ended.data.values, type }));
