"""tmp"""
import functools
import jax, jax.numpy as jnp, numpy as np
from jaxprivrl import precision
from jaxprivrl.privatizers.base import additive
from jaxprivrl.privatizers.streams import *
def central_gaussian(shape, parameters):
    return additive(shape, parameters, tree_stream(shape, "gaussian"))
def central_honaker(shape, parameters):
    return additive(shape, parameters, honaker_stream(shape))
def local_gaussian(shape, parameters):
    return additive(shape, parameters, local_stream("gaussian"))
def central_blt(shape, parameters):
    return additive(shape, parameters, blt_stream(parameters.strategy[0],parameters.strategy[1], lambda n: jnp.ones(())))
def host_strategy(name, K):
    decay, scale = map(np.asarray, precision.blt_parameters(K))
    lam, V = np.linalg.eig(np.diag(1-decay)+np.outer(np.ones(4),scale))
    g = (scale@V)*np.linalg.solve(V,np.ones(4))/lam
    w0 = 1/(1+np.sum(scale/(1-decay)))
    return np.stack([scale,1-decay,lam,g]).astype(np.float32)
